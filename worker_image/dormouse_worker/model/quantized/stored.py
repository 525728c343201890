"""Reads the maps of quantized checkpoints, some rows at a time: plain, or in 4 bits. Parts are read whole, once.

parts of a map in the files --held for the maps that are being read--> some rows --> the window that is read
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType
from typing import Literal

import torch

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.quantized.blocks import SCALE
from dormouse_worker.model.quantized.grouped import Chunks, pack
from dormouse_worker.model.quantized.pieces import put
from dormouse_worker.model.quantized.stored_kinds import ByGroups, Part, StoredKind, Unreadable
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.reader import FILE_DTYPES, CheckpointSource
from dormouse_worker.model.weights.source import Read

WEIGHT = ".weight"
MOST_HELD = 4  # maps whose parts are in host memory: several threads read neighbours
_SERIAL_ELEMENTS = 1 << 14  # few enough that torch computes them on the calling thread, of which there are many


@dataclass(frozen=True, slots=True)
class StoredMap:
    """A map as the files have it: its parts by the name behind the map's, as slots of their own types."""

    name: str  # of its plain weight
    rows: int
    columns: int
    parts: Mapping[str, Slot]
    kept: Chunks | None = None  # how numbers that stay lie (see `grouped`); None = made plain


def find_map(kind: StoredKind, name: str, shape: tuple[int, int], stored: Mapping[str, StoredTensor]) -> StoredMap:
    """Return the parts of the map whose plain weight has this name. Raises ModelInvalid for what contradicts."""
    path = name.removesuffix(WEIGHT)
    if not any(found.startswith(f"{path}.") for found in stored):
        raise ModelInvalid(f"{name} is not in the files, neither plain nor as {kind.name}; copy the files again")
    try:
        wanted = kind.parts(*shape)
    except Unreadable as error:
        raise ModelInvalid(f"config.json: {path} {error}, as {kind.name} needs it") from error
    parts: dict[str, Slot] = {}
    for suffix, part in wanted.items():
        found = stored.get(f"{path}.{suffix}")
        if found is not None:
            _check(found, f"{path}.{suffix}", part)
            parts[suffix] = Slot(f"{path}.{suffix}", 0, found.shape, FILE_DTYPES[found.dtype])
        elif part.is_needed:
            raise ModelInvalid(
                f"{path}.{suffix} is not in the files, and neither is a plain {name}; {kind.name} needs it: copy the "
                "files again, or the config.json that belongs to them"
            )
    return StoredMap(name, *shape, MappingProxyType(parts))


def names_beside(kind: StoredKind, name: str) -> frozenset[str]:
    """Return names of tensors beside a map's weight that say nothing about it."""
    return frozenset(f"{name.removesuffix(WEIGHT)}.{suffix}" for suffix in kind.beside)


def _check(found: StoredTensor, name: str, part: Part) -> None:
    if found.dtype not in part.dtypes or found.shape not in part.shapes:
        shapes = " or ".join(str(list(shape)) for shape in part.shapes)
        raise ModelInvalid(
            f"{found.file}: tensor {name} is {found.dtype} {list(found.shape)}, and config.json asks for "
            f"{' or '.join(part.dtypes)} {shapes}; copy the config.json that belongs to these weights"
        )


class StoredSource:
    """Implements `WeightSource` with plain weights or chunks, over a source that knows the parts' names too."""

    path: Literal["fast"] = "fast"
    held_bytes = 0

    def __init__(self, source: CheckpointSource, kind: StoredKind, maps: Mapping[str, StoredMap]) -> None:
        """`maps` by the names of their plain weights; all other slots are the source's."""
        self._source, self._kind, self._maps = source, kind, maps
        kept = (name for name, stored in maps.items() if stored.kept is not None)
        self._weight_of = {f"{name.removesuffix('weight')}{SCALE}": name for name in kept}

    def __repr__(self) -> str:
        return f"StoredSource({len(self._maps)} maps of {self._kind.name}, {self._source!r})"

    def origin(self, name: str) -> str:
        """See `WeightSource`."""
        found = self._maps.get(self._weight_of.get(name, name))
        return self._source.origin(name if found is None else next(iter(found.parts.values())).name)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        with self._source.open() as read_stored:
            held = _Held(read_stored)

            def read(slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
                found = self._maps.get(slot.name)
                if found is not None:
                    self._read_rows(found, held.parts_of(found), slot, (start, end), target)
                elif slot.name in self._weight_of:  # chunks have the scales
                    target.copy_(torch.ones(len(target) // torch.float32.itemsize).view(torch.uint8))
                else:
                    read_stored(slot, start, end, target)

            yield read

    def _read_rows(
        self,
        stored: StoredMap,
        parts: Mapping[str, torch.Tensor],
        slot: Slot,
        span: tuple[int, int],
        target: torch.Tensor,
    ) -> None:
        row_bytes = slot.shape[1] * slot.dtype.itemsize
        first, end = span[0] // row_bytes, -(-span[1] // row_bytes)
        step = max(1, _SERIAL_ELEMENTS // stored.columns)
        for row in range(first, end, step):
            try:
                rows = self._rows_of(stored, parts, row, min(row + step, end))
            except Unreadable as error:
                raise ModelInvalid(f"{self.origin(slot.name)} {error}; copy the files again") from error
            put(rows.to(slot.dtype).contiguous().view(torch.uint8), row * row_bytes - span[0], target)

    def _rows_of(self, stored: StoredMap, parts: Mapping[str, torch.Tensor], first: int, end: int) -> torch.Tensor:
        if stored.kept is None:
            return self._kind.rows_of(parts, first, end, stored.columns)
        assert isinstance(self._kind, ByGroups), "others keep nothing"
        rows = self._kind.grouped_rows(parts, first, end, stored.columns)
        if not rows.is_finite:
            raise Unreadable("holds a scale that is not finite")
        if not bool((rows.groups.diff() >= 0).all()):
            raise Unreadable("has an order of inputs, and config.json says desc_act false: set it to true")
        return pack(rows, stored.kept)


@dataclass(slots=True)
class _Entry:
    lock: Lock = field(default_factory=Lock)
    parts: Mapping[str, torch.Tensor] | None = None


class _Held:
    """Owns the parts of the maps that were read last; whoever comes first reads them, the others wait."""

    def __init__(self, read: Read) -> None:
        self._read, self._lock = read, Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __repr__(self) -> str:
        return f"_Held({', '.join(self._entries)})"

    def parts_of(self, stored: StoredMap) -> Mapping[str, torch.Tensor]:
        with self._lock:
            entry = self._entries.setdefault(stored.name, _Entry())
            self._entries.move_to_end(stored.name)
            while len(self._entries) > MOST_HELD:
                self._entries.popitem(last=False)
        with entry.lock:
            if entry.parts is None:
                entry.parts = {suffix: self._whole(slot) for suffix, slot in stored.parts.items()}
            return entry.parts

    def _whole(self, slot: Slot) -> torch.Tensor:
        target = torch.empty(slot.num_bytes, dtype=torch.uint8)
        self._read(slot, 0, slot.num_bytes, target)
        return target.view(slot.dtype).view(slot.shape)
