"""What a rank knows of an adapter that it has read, and whether it still is what it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from dormouse_worker.common.errors import WorkerError
from dormouse_worker.files.adapter_files import check_adapter_files
from dormouse_worker.model.adapters.coming import Found
from dormouse_worker.model.adapters.layout import AdapterLayout
from dormouse_worker.model.adapters.read import read_adapter, slot_checksum


@dataclass(frozen=True, slots=True)
class KnownAdapter:
    """An adapter, and which host copy is its own."""

    path: Path
    rank: int
    invocation: tuple[int, ...]  # see `AdapterInfo`
    num_virtual_tokens: int
    has_keys: bool
    place: int
    checksum: int
    lost: str = ""  # why it cannot be used any more

    @classmethod
    def of(cls, path: Path, found: Found, place: int) -> KnownAdapter:
        """Return one that was read into a place."""
        return cls(
            path=path,
            rank=found.rank,
            invocation=found.invocation,
            num_virtual_tokens=found.num_virtual_tokens,
            has_keys=found.has_keys,
            place=place,
            checksum=found.checksum,
        )


def read_again(known: KnownAdapter, layout: AdapterLayout, copy: torch.Tensor, *, max_rank: int) -> str:
    """Fill its copy anew; return why an adapter is not what it was; "" = it is. What is lost stays so."""
    if known.lost:
        return known.lost
    try:
        files = check_adapter_files(known.path, layout.whole, max_rank=max_rank, room=layout.room)
        read_adapter(files, layout, copy, _go_on)
    except WorkerError as error:
        return str(error)
    is_the_same = slot_checksum(copy, _go_on) == known.checksum
    return "" if is_the_same else f"{known.path}: its files changed while the worker slept"


def _go_on() -> None:
    """Nobody computes meanwhile: there is no reason to stop."""
