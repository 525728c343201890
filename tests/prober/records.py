"""The raw records of a run as one compressed file: every request, the seed, the commit."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.results import commit, machine
from tests.prober.probe import Record

MAX_BYTES = 2_000_000
FIELDS = (
    *("scenario", "model", "due_ms", "late_ms", "first_ms", "end_ms", "stall_ms", "case", "tokens", "code", "verdict"),
    *("start", "door", "tries", "first_code", "migrated", "lost_tokens", "repeated_tokens", "message"),
)


def row(record: Record) -> list[Any]:
    """Return a record in the order of FIELDS. Times: milliseconds; `first` and `end` count from the due time."""
    finding = record.finding
    assert finding is not None, "a request of a finished run has ended"
    return [
        record.scenario,
        record.model,
        _ms(record.due_s),
        _ms(record.late_s),
        None if record.first_s is None else _ms(record.first_s - record.due_s),
        _ms(record.last_s - record.due_s),
        _ms(record.stall_s),
        record.ask.case,
        record.ask.max_tokens,
        record.code,
        str(finding.verdict),
        record.start,
        record.door,
        record.tries,
        record.first_code,
        int(record.is_migrated),
        finding.lost,
        finding.repeated,
        record.message,
    ]


def write(path: Path, records: Sequence[Record], *, seed: int, notes: Mapping[str, Any]) -> int:
    """Write all records and return the file's size. Raises ValueError if it is above MAX_BYTES."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    head = {"name": "ladder", "date": now, "commit": commit(), "machine": machine(), "seed": seed, "notes": notes}
    lines = [json.dumps({**head, "fields": FIELDS}), *(json.dumps(row(record)) for record in records)]
    packed = gzip.compress("\n".join(lines).encode() + b"\n", mtime=0)
    if len(packed) > MAX_BYTES:
        raise ValueError(f"{path.name} would have {len(packed)} bytes; the limit is {MAX_BYTES}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed)
    return len(packed)


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what stands above the records, and each record by the names of its fields."""
    head, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    about: dict[str, Any] = json.loads(head)
    return about, [dict(zip(about["fields"], json.loads(line), strict=True)) for line in lines]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
