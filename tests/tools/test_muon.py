"""The optimizer of the small model."""

from __future__ import annotations

import pytest
import torch

from tools.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(6, 16), (16, 6), (8, 8)])
def test_singular_values_come_near_one_and_directions_stay(shape):
    torch.manual_seed(1)
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    given = left @ torch.diag(torch.linspace(0.3, 3.0, min(shape))) @ right
    made = orthogonal(given)
    values = torch.diagonal(left.T @ made @ right.T)
    assert made.shape == given.shape
    assert torch.allclose(left @ torch.diag(values) @ right, made, atol=1e-4), "only the values change"
    assert 0.6 < values.min() <= values.max() < 1.3


def test_a_matrix_is_learned():
    torch.manual_seed(2)
    wanted = torch.randn(12, 8)
    matrix = torch.nn.Parameter(torch.zeros(12, 8))
    unused = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = Muon([matrix, unused], lr=0.1)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 200)
        optimizer.zero_grad()
        ((matrix - wanted) ** 2).sum().backward()
        optimizer.step()
    assert torch.allclose(matrix, wanted, atol=0.05)
    assert torch.equal(unused, torch.ones(2, 2))
