"""transformers' own models, which say what ours shall say: read once where a test asks one several times."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

NUM_KEPT = 2  # a test compares two at most
Stamp = tuple[tuple[str, int, int], ...]


def read_reference(kind: Any, directory: Path, **arguments: Any) -> Any:
    """Return a model of a directory in float32, as a class of transformers reads it. Nobody may change it.

    It is read again when a file of the directory is another. To read draws none of the numbers that a test draws, so
    whether it was kept tells nobody.
    """
    return _read(kind, directory, stamp_of(directory), tuple(arguments.items()))


def stamp_of(directory: Path) -> Stamp:
    """Return what tells whether the files of a directory are still the same."""
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(directory.iterdir()))


@functools.lru_cache(maxsize=NUM_KEPT)
def _read(kind: Any, directory: Path, stamp: Stamp, arguments: tuple[tuple[str, Any], ...]) -> Any:
    del stamp  # only tells models apart
    with torch.random.fork_rng(devices=[]):
        return kind.from_pretrained(directory, dtype=torch.float32, **dict(arguments)).eval()
