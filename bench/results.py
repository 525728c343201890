"""Writes what a benchmark found as `bench/results/NAME.json`, and prints it. Decides whether a goal holds.

    {"machine": …, "commit": …, "date": …, "rows": [{"what", "ours", "peer", "ratio", "unit", "goal", "holds"}]}

`ratio` is ours / peer. A row without a peer has neither; a row without a goal is for information, its `holds` is null.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table

from tools.bootstrap import ROOT

RESULTS_DIR = ROOT / "bench" / "results"
KINDS = ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2")  # of processors, the widest first
PICTURES = ROOT / "docs" / "pictures"  # of measurements that a page shows
DIGITS = 4  # significant ones; more is noise
OTHERS_ROWS = {"gateway": ("lost or duplicated", "SIGKILL of")}  # how rows of `make e2e-ladder` in a result begin


class Goal(Protocol):
    """What a row must reach. `str` of it stands in the file."""

    def holds(self, ours: float, peer: float | None) -> bool:
        """Return whether it is reached. Raises ValueError if a figure that it needs is missing."""


@dataclass(frozen=True, slots=True)
class RatioAtLeast:
    """Ours is so many times the peer's."""

    times: float

    def __str__(self) -> str:
        return f"ratio ≥ {self.times:g}"

    def holds(self, ours: float, peer: float | None) -> bool:
        """See `Goal`."""
        if peer is None:
            raise ValueError(f"goal {self}: the row has no peer")
        return ours >= self.times * peer


@dataclass(frozen=True, slots=True)
class RatioAtMost:
    """Ours is no more than so many times the peer's."""

    times: float

    def __str__(self) -> str:
        return f"ratio ≤ {self.times:g}"

    def holds(self, ours: float, peer: float | None) -> bool:
        """See `Goal`."""
        if peer is None:
            raise ValueError(f"goal {self}: the row has no peer")
        return ours <= self.times * peer


@dataclass(frozen=True, slots=True)
class AtMost:
    """Ours is no more than this, in the row's unit."""

    value: float

    def __str__(self) -> str:
        return f"≤ {self.value:g}"

    def holds(self, ours: float, peer: float | None) -> bool:
        """See `Goal`."""
        del peer  # whatever it is
        return ours <= self.value


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Ours is no less than this, in the row's unit."""

    value: float

    def __str__(self) -> str:
        return f"≥ {self.value:g}"

    def holds(self, ours: float, peer: float | None) -> bool:
        """See `Goal`."""
        del peer  # whatever it is
        return ours >= self.value


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. Figures are rounded at birth: the file, the ratio and the verdict speak of the same numbers."""

    what: str
    ours: float
    unit: str
    peer: float | None = None
    goal: Goal | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ours", _rounded(self.what, "ours", self.ours))
        if self.peer is not None:
            object.__setattr__(self, "peer", _rounded(self.what, "peer", self.peer))

    @property
    def ratio(self) -> float | None:
        """Return ours / peer."""
        return None if not self.peer else round(self.ours / self.peer, 3)

    @property
    def holds(self) -> bool | None:
        """Return whether the goal is reached; None without a goal."""
        return None if self.goal is None else self.goal.holds(self.ours, self.peer)

    def to_json(self) -> dict[str, object]:
        """Return the row as it stands in the file."""
        figures: dict[str, object] = {"what": self.what, "ours": self.ours, "peer": self.peer, "ratio": self.ratio}
        return {**figures, "unit": self.unit, "goal": str(self.goal) if self.goal else None, "holds": self.holds}


def _rounded(what: str, whose: str, figure: float) -> float:
    if not math.isfinite(figure):
        raise ValueError(f"{what}: {whose} is {figure}; it must be a finite number")
    return float(f"{figure:.{DIGITS}g}")


def write_results(name: str, rows: Sequence[Row], directory: Path = RESULTS_DIR, *, where: str = "") -> Path:
    """Write NAME.json and return its path. `where` replaces this machine's description.

    Rows that another program adds to the file stay as they are.
    """
    directory.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    head = {"machine": where or machine(), "commit": commit(), "date": now}
    path = directory / f"{name}.json"
    kept = _rows_of_others(path, OTHERS_ROWS.get(name, ()))
    content = {**head, "rows": [*(row.to_json() for row in rows), *kept]}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return path


def _rows_of_others(path: Path, beginnings: tuple[str, ...]) -> list[dict[str, object]]:
    """Return the rows in the file that begin so; none if there is no file yet."""
    if not beginnings or not path.is_file():
        return []
    rows: list[dict[str, object]] = json.loads(path.read_text("utf-8"))["rows"]
    return [row for row in rows if str(row["what"]).startswith(beginnings)]


def print_table(rows: Iterable[Row], console: Console | None = None) -> None:
    """Print the rows."""
    table = Table("what", box=None, pad_edge=False)
    for column in ("ours", "peer", "ratio"):
        table.add_column(column, justify="right")
    for column in ("unit", "goal", "holds"):
        table.add_column(column)
    verdicts = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}
    for row in rows:
        figures = [_text(figure) for figure in (row.ours, row.peer, row.ratio)]
        table.add_row(row.what, *figures, row.unit, str(row.goal or ""), verdicts[row.holds])
    (console or Console()).print(table)


def _text(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,g}" if abs(figure) < 1e6 else f"{figure:,.0f}"


def machine() -> str:
    """Return processor, cores and memory of this machine; nothing that names it."""
    cpu_info, memory_info = (Path(f"/proc/{name}").read_text("utf-8") for name in ("cpuinfo", "meminfo"))
    return describe_machine(cpu_info, memory_info, len(os.sched_getaffinity(0)))


def describe_machine(cpu_info: str, memory_info: str, num_cores: int) -> str:
    """Return the machine in words from the texts of /proc/cpuinfo and /proc/meminfo."""
    model = re.search(r"^model name\s*:\s*(.+)$", cpu_info, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB$", memory_info, re.MULTILINE)
    size = f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "unknown memory"
    name, widest = model[1].strip() if model else "unknown processor", _widest_of(cpu_info)
    return f"{name}{f' with {widest}' if widest else ''}, {num_cores} cores, {size}"


def _widest_of(cpu_info: str) -> str:
    """Return the most that such a processor computes with, as Linux names it: names are sold for several of them."""
    flags = re.search(r"^flags\s*:(.+)$", cpu_info, re.MULTILINE)
    return next((kind for kind in KINDS if flags and f" {kind} " in f"{flags[1]} "), "")


def commit() -> str:
    """Return the commit that was measured, and whether files differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    is_changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return f"{head} with changes" if head and is_changed else head or "unknown"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a machine that only runs programs
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
