"""The books of a device that is not there: who holds how much of it, and how far it ever went. Pure.

Each process that uses the device has a row. What it holds is its context, which stays while it lives, and what it
takes and gives back; what it was promised counts as held, so that nobody else can have it.

A page is what is kept of it: marks first, then the rows, all of them 64-bit integers:

    | highest | most awake | over size | over budget | number of rows | 0 … | row 0 | row 1 | …
    row:  | context | held | promised | budget |
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dormouse_worker.model.device.driver import DeviceOutOfMemory

PAGE_BYTES = 4096  # written at once: a process that is killed has written all of it or nothing
_HEADER, _ROW = struct.Struct("<5q24x"), struct.Struct("<4q")
MAX_ROWS = (PAGE_BYTES - _HEADER.size) // _ROW.size


@dataclass(frozen=True, slots=True)
class Row:
    """One process's."""

    context_bytes: int = 0
    held_bytes: int = 0
    promised_bytes: int = 0
    budget_bytes: int = 0  # 0 = none was set

    @property
    def used_bytes(self) -> int:
        """Return what nobody else can have."""
        return self.context_bytes + self.held_bytes + self.promised_bytes

    @property
    def is_awake(self) -> bool:
        """Return whether it holds more than the residue of one that sleeps."""
        return self.held_bytes + self.promised_bytes > 0

    @property
    def over_budget_bytes(self) -> int:
        """Return by how much it holds more than it may."""
        return max(0, self.used_bytes - self.budget_bytes) if self.budget_bytes else 0


_NOTHING = Row()


@dataclass(frozen=True, slots=True)
class Marks:
    """How far it ever went; a mark never falls."""

    highest_bytes: int = 0  # of all processes together
    most_awake: int = 0  # processes at once
    over_size_bytes: int = 0  # by which a taking missed the device's size; it was refused
    over_budget_bytes: int = 0  # by which a process passed its budget; the device let it


@dataclass(frozen=True, slots=True)
class Books:
    """All of one device's."""

    total_bytes: int
    marks: Marks = field(default_factory=Marks)
    rows: Mapping[int, Row] = field(default_factory=dict)  # by number; whose row says nothing, has none

    @property
    def used_bytes(self) -> int:
        """Return what all processes hold."""
        return sum(row.used_bytes for row in self.rows.values())

    @property
    def free_bytes(self) -> int:
        """Return what somebody could take."""
        return max(0, self.total_bytes - self.used_bytes)

    @property
    def awake(self) -> tuple[int, ...]:
        """Return whose rows hold more than a residue."""
        return tuple(number for number, row in self.rows.items() if row.is_awake)

    def enter(self, number: int, budget_bytes: int) -> Books:
        """Give a new process its row, whoever had it before."""
        return self._with(number, Row(budget_bytes=budget_bytes))

    def leave(self, *numbers: int) -> Books:
        """Forget processes; nothing happens to one that is not there."""
        return replace(self, rows={number: row for number, row in self.rows.items() if number not in numbers})

    def open_context(self, number: int, num_bytes: int) -> Books:
        """Take what stays until the process ends. Raises DeviceOutOfMemory."""
        self._require(num_bytes, self.free_bytes)
        return self._with(number, replace(self._row(number), context_bytes=num_bytes))

    def promise(self, number: int, num_bytes: int) -> Books:
        """Keep so much for what this process takes next; 0 = nothing any more. Raises DeviceOutOfMemory."""
        row = self._row(number)
        self._require(num_bytes, self.free_bytes + row.promised_bytes)
        return self._with(number, replace(row, promised_bytes=num_bytes))

    def take(self, number: int, num_bytes: int) -> Books:
        """Hold so much more, out of what was promised first. Raises DeviceOutOfMemory; `refuse` notes that."""
        row = self._row(number)
        self._require(num_bytes, self.free_bytes + row.promised_bytes)
        promised_bytes = max(0, row.promised_bytes - num_bytes)
        return self._with(number, replace(row, held_bytes=row.held_bytes + num_bytes, promised_bytes=promised_bytes))

    def give(self, number: int, num_bytes: int) -> Books:
        """Hold so much less."""
        row = self._row(number)
        assert num_bytes <= row.held_bytes, f"{num_bytes} bytes are given back, {row.held_bytes} are held"
        return self._with(number, replace(row, held_bytes=row.held_bytes - num_bytes))

    def refuse(self, missing_bytes: int) -> Books:
        """Note a taking that the device had not the room for."""
        over_size_bytes = max(self.marks.over_size_bytes, missing_bytes)
        return replace(self, marks=replace(self.marks, over_size_bytes=over_size_bytes))

    def check_integrity(self) -> None:
        """Raise AssertionError if more is held than there is, or if a mark is below what is."""
        assert self.used_bytes <= self.total_bytes, self
        for row in self.rows.values():
            assert min(row.context_bytes, row.held_bytes, row.promised_bytes, row.budget_bytes) >= 0, self
        assert self.marks == _raised(self.marks, self), self

    def _row(self, number: int) -> Row:
        return self.rows.get(number, _NOTHING)

    def _require(self, num_bytes: int, free_bytes: int) -> None:
        if num_bytes > free_bytes:
            raise DeviceOutOfMemory(num_bytes, free_bytes)

    def _with(self, number: int, row: Row) -> Books:
        changed = replace(self, rows={**self.rows, number: row})
        return replace(changed, marks=_raised(self.marks, changed))


def _raised(marks: Marks, books: Books) -> Marks:
    """Return the marks with what is now."""
    return replace(
        marks,
        highest_bytes=max(marks.highest_bytes, books.used_bytes),
        most_awake=max(marks.most_awake, len(books.awake)),
        over_budget_bytes=max(marks.over_budget_bytes, *(row.over_budget_bytes for row in books.rows.values()), 0),
    )


def to_page(books: Books) -> bytes:
    """Return the page, without the device's size: that stands elsewhere."""
    marks, num_rows = books.marks, max(books.rows, default=-1) + 1
    header = _HEADER.pack(
        marks.highest_bytes, marks.most_awake, marks.over_size_bytes, marks.over_budget_bytes, num_rows
    )
    rows = (books.rows.get(number, _NOTHING) for number in range(num_rows))
    return header + b"".join(
        _ROW.pack(row.context_bytes, row.held_bytes, row.promised_bytes, row.budget_bytes) for row in rows
    )


def from_page(page: bytes, total_bytes: int) -> Books:
    """Return the books of a page; an empty one is that of a device that nobody has used."""
    if not page:
        return Books(total_bytes)
    *marks, num_rows = _HEADER.unpack_from(page)
    end = _HEADER.size + num_rows * _ROW.size
    rows = enumerate(_ROW.iter_unpack(page[_HEADER.size : end]))
    return Books(total_bytes, Marks(*marks), {number: Row(*row) for number, row in rows if any(row)})
