"""Puts rows into a result file that several programs write: those of the same `what` are replaced, others stay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.results import RESULTS_DIR, Row, commit, machine


def merge_results(name: str, rows: Sequence[Row], directory: Path = RESULTS_DIR) -> Path:
    """Write the rows into NAME.json and return its path. What stands above the rows is told by the last writer."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    old = json.loads(path.read_text("utf-8"))["rows"] if path.is_file() else []
    now = datetime.now(UTC).isoformat(timespec="seconds")
    content = {
        "machine": machine(),
        "commit": commit(),
        "date": now,
        "rows": merged(old, [row.to_json() for row in rows]),
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return path


def recorded(name: str, directory: Path) -> dict[str, float]:
    """Return our figures in the file, by what they say; none if there is no file."""
    path = directory / f"{name}.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.is_file() else []
    return {row["what"]: row["ours"] for row in rows}


def merged(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the old rows with the new ones in the places of those that say the same, and the others behind. Pure."""
    replaced = {row["what"]: row for row in new}
    kept = [replaced.pop(row["what"], row) for row in old]
    return [*kept, *replaced.values()]
