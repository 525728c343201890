"""Tokens that the device has sampled and the host does not know yet. The next pass goes on from them all the same.

    host      | 17 |  4 | 99 | PROMISED |       the row of a sequence: its place is kept, the token comes later
    device    newest token of each row          stands in for it in the input of the pass

The host launches a pass without waiting for the one before, and learns the tokens while the device computes. Only where
the logits alone decide: rows whose tokens are looked at (penalties, grammars), or of which more is told than tokens,
are set aside, and answered when somebody asks. That computes beside the pass that was launched meanwhile, on a stream
of its own: behind it the answer would come a whole pass later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from dormouse_worker.engine.batch import ModelOutput, SampledToken
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.batch_rows import BatchRows
from dormouse_worker.model.input_batch import PROMISED, InputBatch, PackedInput
from dormouse_worker.model.to_device import to_device


class TokenCopy(Protocol):
    """Tokens on their way to the host."""

    def wait(self) -> Ints:
        """Return the tokens [N] once they are there."""


ODD = -2  # comes in the place of a token whose logits were not finite

TokenCopier = Callable[[torch.Tensor], TokenCopy]  # begins to copy tokens [N]


class CudaTokenCopy:
    """Implements `TokenCopy`: a copy on the current stream, and the event behind it."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        self._host.copy_(tokens, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def wait(self) -> Ints:
        """See `TokenCopy`. Raises what the device's computation raised."""
        self._copied.synchronize()
        tokens: Ints = self._host.numpy()
        return tokens


@dataclass(frozen=True, slots=True, eq=False)
class _Promise:
    """The tokens of one pass, and their places in the rows."""

    batch_rows: BatchRows
    places: Ints
    copy: TokenCopy


class PromisedTokens:
    """Owns the newest token of each row on the device, and the promises that are open."""

    def __init__(self, input_batch: InputBatch, device: torch.device, copier: TokenCopier) -> None:
        self._input = input_batch
        self._device = device
        self._copier = copier
        self._newest = torch.zeros(input_batch.num_rows, dtype=torch.long, device=device)
        is_cuda = device.type == "cuda"
        self._aside = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]
        self._open: list[_Promise] = []
        self._rows = BatchRows(()), torch.empty(0, dtype=torch.long, device=device)

    def __repr__(self) -> str:
        return f"PromisedTokens({len(self._open)} passes)"

    @torch.inference_mode()
    def promise(
        self, batch_rows: BatchRows, tokens: torch.Tensor, are_finite: torch.Tensor
    ) -> Callable[[], ModelOutput]:
        """Keep a place for a token of each sequence; return who waits for them. tokens int64 [N] on the device.

        Where they are not finite, bool [N], their logits were not, and the host is told so. The device goes on from
        them until then: it knows no place that is none.
        """
        copy = self._copier(tokens.where(are_finite, ODD))  # first: if it fails nothing is promised
        self._newest.index_copy_(0, self._rows_of(batch_rows), tokens)
        promise = _Promise(batch_rows, self._input.promise_each(batch_rows), copy)
        self._open.append(promise)
        return partial(self._keep, promise)

    @torch.inference_mode()
    def put_into(self, token_ids: torch.Tensor, packed: PackedInput) -> None:
        """Put what was promised into the pass's token ids [T] on the device."""
        where = np.flatnonzero(packed.token_ids == PROMISED)
        if len(where) == len(packed.batch_rows) == len(token_ids):  # all decode
            token_ids.copy_(self._newest[self._rows_of(packed.batch_rows)])
        elif len(where):
            sequences = np.searchsorted(packed.query_starts, where, side="right") - 1
            target, rows = to_device(np.stack([where, packed.batch_rows.rows[sequences]]), self._device)
            token_ids.index_copy_(0, target, self._newest[rows])

    def set_aside(self, logits: torch.Tensor) -> Callable[[], AbstractContextManager[object]]:
        """Return where to compute with these logits, which were computed just now, whatever is launched meanwhile."""
        if self._aside is None:
            return nullcontext
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        logits.record_stream(self._aside)
        return partial(_beside, self._aside, ready)

    def forget(self) -> None:
        """The rows are other sequences' from now on; whoever waits still gets his tokens."""
        self._open.clear()

    def _rows_of(self, batch_rows: BatchRows) -> torch.Tensor:
        """Return the rows on the device. Nearly every pass has the lineup of the pass before."""
        last, rows = self._rows
        if batch_rows is not last:
            rows = to_device(batch_rows.rows, self._device)
            self._rows = batch_rows, rows
        return rows

    def _keep(self, promise: _Promise) -> ModelOutput:
        told = promise.copy.wait()
        tokens = told.clip(min=0)
        if promise in self._open:
            self._open.remove(promise)
            self._input.note(promise.batch_rows, promise.places, tokens)
        request_ids = promise.batch_rows.request_ids
        odd = tuple(request_ids[row] for row in np.flatnonzero(told == ODD))
        return ModelOutput([*map(SampledToken, request_ids, tokens.tolist())], not_finite=odd)


@contextmanager
def _beside(stream: torch.cuda.Stream, ready: torch.cuda.Event) -> Iterator[None]:
    with torch.cuda.stream(stream):
        stream.wait_event(ready)
        yield
