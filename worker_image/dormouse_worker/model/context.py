"""The forward context: how attention inside a transformers model finds our cache. The one module global, on purpose.

Arguments would be dropped on the way down by some models, so the runner sets the context around each forward pass and
the registered attention function reads it. One engine process runs one pass at a time, in one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer asks for besides its tensors."""

    layer_idx: int
    scale: float
    window: int | None = None  # a token sees itself and the window - 1 tokens before it; None = all
    soft_cap: float | None = None  # scores become cap · tanh(score / cap)
    sinks: torch.Tensor | None = None  # [Hq], one logit per head that takes weight but gives no value


class ForwardContext(Protocol):
    """Answers the attention of one forward pass."""

    def attend(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Take query [T, Hq, D], key [T, Hkv, D] and value [T, Hkv, Dv] of the packed batch; return [T, Hq, Dv]."""


_current: ForwardContext | None = None


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[None]:
    """Answer attention by `context` inside the block; blocks do not nest."""
    global _current  # noqa: PLW0603  see the module's first lines
    assert _current is None, "forward passes do not nest"
    _current = context
    try:
        yield
    finally:
        _current = None


def current_context() -> ForwardContext:
    """Return the context of the running forward pass."""
    assert _current is not None, "attention was called outside a forward pass of ours"
    return _current
