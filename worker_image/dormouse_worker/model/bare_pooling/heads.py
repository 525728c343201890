"""What stands behind the hidden states of a classifier: which layers, and what of a text they read. Data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reads = Literal["first", "mean", "last"]  # the first row; all rows' mean; the last row whose token is no padding


@dataclass(frozen=True, slots=True)
class HeadNames:
    """A classifier's layers over what it reads of a text: perhaps one with an activation, then the labels'."""

    dense: str | None
    activation: Literal["gelu", "relu", "tanh"]  # behind it
    labels: str
    norm: str | None = None  # behind the activation, without a bias
    reads: Reads = "first"
    has_dense_bias: bool = True
    has_bias: bool = True  # of the labels

    def shapes(self, hidden: int, num_labels: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor, by name."""
        found: dict[str, tuple[int, ...]] = {f"{self.labels}.weight": (num_labels, hidden)}
        if self.has_bias:
            found[f"{self.labels}.bias"] = (num_labels,)
        if self.dense is not None:
            found[f"{self.dense}.weight"] = (hidden, hidden)
        if self.dense is not None and self.has_dense_bias:
            found[f"{self.dense}.bias"] = (hidden,)
        if self.norm is not None:
            found[f"{self.norm}.weight"] = (hidden,)
        return found
