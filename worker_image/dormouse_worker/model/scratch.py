"""Memory that every pass needs and none keeps, allocated once: new memory costs a page fault for each 4 KiB of it."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT_BYTES = 64
Floats = npt.NDArray[np.float32]


class Scratch:
    """Owns the logits and the workspace of the last pass, on the processor. Grows to the largest pass."""

    def __init__(self, state_size: int = 0, *, keeps_all_states: bool = False, depths: Sequence[int] = ()) -> None:
        """Keep states, too, of so many numbers a row: of the rows that are wanted, or all.

        A row's state is what the head is multiplied with; or what comes of so many layers, each of `depths`, side by
        side. Of the rows that are wanted alone that is what comes of all layers.
        """
        self.state_size = state_size
        self.depths = np.array(depths, dtype=np.int64)
        self.keeps_all_states = keeps_all_states
        self._most_states: Floats = np.empty(0, dtype=np.float32)
        self.states = self._most_states.reshape(0, state_size or 1)  # [rows or tokens, H]
        self._largest: Floats = np.empty(0, dtype=np.float32)
        self._workspace = np.empty(0, dtype=np.uint8)
        self.pass_size = (0, 0)  # tokens and rows of the last pass
        self.logits = self._largest.reshape(0, 1)  # [rows, V]
        self.workspace_address = 0

    def __repr__(self) -> str:
        return f"Scratch({self.num_bytes} bytes)"

    @property
    def num_bytes(self) -> int:
        """Return what is held."""
        return self._largest.nbytes + self._most_states.nbytes + self._workspace.nbytes

    def resize(self, num_tokens: int, num_rows: int, vocab_size: int, workspace_bytes: int) -> None:
        """Fit a pass: [rows, V] logits and a workspace of so many bytes at least; what they hold is unknown."""
        self.pass_size = num_tokens, num_rows
        count, num_bytes = num_rows * vocab_size, workspace_bytes + ALIGNMENT_BYTES
        if count > len(self._largest):
            self._largest = np.empty(count, dtype=np.float32)
        if num_bytes > len(self._workspace):
            self._workspace = np.empty(num_bytes, dtype=np.uint8)
            self.workspace_address = -(-address_of(self._workspace) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.logits = self._largest[:count].reshape(num_rows, vocab_size)
        num_states = num_tokens if self.keeps_all_states else num_rows
        if num_states * self.state_size > len(self._most_states):
            self._most_states = np.empty(num_states * self.state_size, dtype=np.float32)
        if self.state_size:
            self.states = self._most_states[: num_states * self.state_size].reshape(num_states, self.state_size)


def address_of(array: npt.NDArray[Any]) -> int:
    """Return where a dense array lies; 0 if it is empty. A third of the time of numpy's own ways to tell."""
    return addressof(c_char.from_buffer(array.data)) if array.size else 0
