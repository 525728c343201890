"""Muon in float32: momentum made orthogonal, for the matrices of a small model.

torch.optim.Muon does the same in bfloat16, which processors without such instructions compute 60 times slower.
Source: Keller Jordan, "Muon: an optimizer for hidden layers in neural networks", 2024.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic: steep at 0, all singular values end between 0.7 and 1.2
ITERATIONS = 5
EPSILON = 1e-7  # of a norm


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonal matrix that is nearest to Nesterov's momentum."""

    def __init__(self, matrices: Iterable[torch.Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # there is no closure here
        """Change every matrix, [rows, columns], that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._change(matrix, matrix.grad, group["lr"], group["momentum"])

    def _change(self, matrix: torch.Tensor, gradient: torch.Tensor, lr: float, momentum: float) -> None:
        state = self.state[matrix]
        if not state:
            state["mean"] = torch.zeros_like(matrix)
        mean = state["mean"].lerp_(gradient, 1 - momentum)
        rows, columns = matrix.shape
        matrix.add_(orthogonal(gradient.lerp(mean, momentum)), alpha=-lr * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return about the nearest orthogonal matrix, of the same shape, by Newton and Schulz's iteration."""
    a, b, c = COEFFICIENTS
    wide: torch.Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / (wide.norm() + EPSILON)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
