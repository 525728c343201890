"""The forward context: how attention inside a transformers model finds our cache. The one module global, on purpose.

Arguments would be dropped on the way down by some models, so the runner sets the context around each forward pass and
the registered attention function reads it. So do the modules that need other ranks. A thread runs one pass at a time;
an engine process has one that does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dormouse_worker.model.parallel.communicator import ALONE, Communicator

if TYPE_CHECKING:
    import torch

if TYPE_CHECKING:
    from dormouse_worker.model.adapters.rows import AdapterRows


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


_current: ContextVar[tuple[ForwardContext, Communicator, AdapterRows | None] | None] = ContextVar(
    "_current", default=None
)


@contextmanager
def forward_context(
    context: ForwardContext, communicator: Communicator = ALONE, adapters: AdapterRows | None = None
) -> Iterator[None]:
    """Answer attention by `context` and reach other ranks by `communicator` inside the block; blocks do not nest.

    Linear layers that can be adapted add what `adapters` say; None = no row has any.
    """
    assert _current.get() is None, "forward passes do not nest"
    token = _current.set((context, communicator, adapters))
    try:
        yield
    finally:
        _current.reset(token)


def current_context() -> ForwardContext:
    """Return the context of the running forward pass."""
    current = _current.get()
    assert current is not None, "attention was called outside a forward pass of ours"
    return current[0]


def current_communicator() -> Communicator:
    """Return the running forward pass's way to the other ranks."""
    current = _current.get()
    assert current is not None, "another rank was asked for outside a forward pass of ours"
    return current[1]


def current_adapters() -> AdapterRows | None:
    """Return the adapters of the running forward pass's rows; None = no row has any."""
    current = _current.get()
    return None if current is None else current[2]
