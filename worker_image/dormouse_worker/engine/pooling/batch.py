"""What a pass over whole texts takes and gives: frozen, free of tensors, the same for every device."""

from __future__ import annotations

import msgspec

from dormouse_worker.common.task_messages import PoolingParams


class PooledSequence(msgspec.Struct, frozen=True, gc=False):
    """One text of a pass."""

    token_ids: list[int]
    params: PoolingParams
    second_start: int = 0  # of a pair: the place of its first token of the second kind; 0 = there is none

    @property
    def num_tokens(self) -> int:
        """Return its rows in the packed input."""
        return len(self.token_ids)


class PoolingBatch(msgspec.Struct, frozen=True):
    """One forward pass, never empty."""

    sequences: tuple[PooledSequence, ...]


class PoolingOutput(msgspec.Struct, frozen=True):
    """What one pass gave."""

    vectors: list[bytes]  # one for each sequence, in order: float32, little-endian
    not_finite: tuple[int, ...] = ()  # places of sequences whose vectors mean nothing
