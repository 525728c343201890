"""The operator's writes as the API server recorded them. `parse_writes` is pure; `AuditLog` knows how far it read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec


class Reference(msgspec.Struct, frozen=True, rename="camel"):
    """What was written."""

    resource: str
    subresource: str = ""


class Record(msgspec.Struct, frozen=True, rename="camel"):
    """One line of the audit log; the rest of it is not read."""

    verb: str
    object_ref: Reference

    @property
    def what(self) -> str:
        """Return the write in two words, as RBAC has them."""
        reference = self.object_ref
        return f"{self.verb} {'/'.join(filter(None, (reference.resource, reference.subresource)))}"


_DECODER = msgspec.json.Decoder(Record)


def parse_writes(lines: Iterable[bytes]) -> Counter[str]:
    """Return how often what was written; the Lease, which must be written at rest too, is left out."""
    records = (_DECODER.decode(line) for line in lines)
    return Counter(record.what for record in records if record.object_ref.resource != "leases")


class AuditLog:
    """The audit log, read piece by piece."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def __repr__(self) -> str:
        return f"AuditLog({self._path}, {self._offset} bytes read)"

    def read(self) -> Counter[str]:
        """Return the writes since the last call; a line that is not yet whole belongs to the next."""
        if not self._path.exists():  # made with the first line
            return Counter()
        with self._path.open("rb") as handle:
            handle.seek(self._offset)
            whole, newline, _ = handle.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return parse_writes(whole.splitlines())
