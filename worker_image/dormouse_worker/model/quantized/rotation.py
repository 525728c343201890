"""Hadamard's rotation of rows, block by block: what stands out of a block is spread over all of it. Pure.

A product of two rows is the same if both are rotated, so weights are rotated before they are rounded, and activations
before each product (QuaRot, arXiv 2404.00456). A rotation that is done twice gives back what there was.
"""

from __future__ import annotations

import torch

from dormouse_worker.model.quantized.blocks import block_size_of


def mix(rows: torch.Tensor) -> torch.Tensor:
    """Return sums and differences float32 [..., n], each block's size to the 1/2 times a rotation.

    Each number is found by additions in the kernels' order, so that it has their bits.
    """
    size = block_size_of(rows.shape[-1])
    mixed, distance = rows.float(), 1
    while distance < size:
        pairs = mixed.reshape(-1, 2, distance)
        mixed = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1)
        distance *= 2
    return mixed.reshape(rows.shape)


def rotate(rows: torch.Tensor) -> torch.Tensor:
    """Return rows float32 [..., n] of the same lengths."""
    factor: float = block_size_of(rows.shape[-1]) ** -0.5
    return mix(rows) * factor
