"""What peers' decoders are made of, with numpy alone: a model's tensors as float32, and its rotations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]


class PlainTensors:
    """The tensors of a directory whose safetensors hold bfloat16; each is made when it is asked for."""

    def __init__(self, directory: Path) -> None:
        raw = np.memmap(directory / "model.safetensors", np.uint8, "r")
        size = int(raw[:8].view("<u8")[0])
        header = json.loads(raw[8 : 8 + size].tobytes())
        self._data = raw[8 + size :]
        self._stored = {name: stored for name, stored in header.items() if name != "__metadata__"}

    def __repr__(self) -> str:
        return f"PlainTensors({len(self._stored)})"

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __getitem__(self, name: str) -> Floats:
        return widened(self.halves(name))

    def halves(self, name: str) -> np.ndarray[Any, Any]:
        """Return the upper halves of the numbers, uint16, as they lie in the file."""
        stored = self._stored[name]
        assert stored["dtype"] == "BF16", stored["dtype"]
        start, end = stored["data_offsets"]
        return self._data[start:end].view(np.uint16).reshape(stored["shape"])


def widened(halves: np.ndarray[Any, Any]) -> Floats:
    """Return the numbers that upper halves of them are."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def rotations(config: Mapping[str, Any], head_size: int, num_positions: int) -> tuple[Floats, Floats]:
    """Return cosines and sines [positions, head size / 2] by which a model's heads are turned."""
    base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    frequencies = base ** (-np.arange(0, head_size, 2) / head_size)
    angles = np.outer(np.arange(num_positions), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
