"""Memory that every pass needs and none keeps, allocated once: new memory costs a page fault for each 4 KiB of it."""

from __future__ import annotations

import torch

ALIGNMENT_BYTES = 64


class Scratch:
    """Owns the logits and the workspace of the last pass, on the processor. Grows to the largest pass."""

    def __init__(self) -> None:
        self._logits = torch.empty(0, 0)
        self._largest = torch.empty(0)
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def __repr__(self) -> str:
        return f"Scratch({self.num_bytes} bytes)"

    @property
    def num_bytes(self) -> int:
        """Return what is held."""
        return self._largest.nbytes + self._workspace.nbytes

    def logits(self, num_rows: int, vocab_size: int) -> torch.Tensor:
        """Return float32 [num_rows, V] of unknown contents, the same memory in every pass."""
        if self._logits.shape != (num_rows, vocab_size):
            count = num_rows * vocab_size
            if count > len(self._largest):
                self._largest = torch.empty(count)
            self._logits = self._largest[:count].view(num_rows, vocab_size)
        return self._logits

    def workspace(self, num_bytes: int) -> int:
        """Return the aligned address of so many bytes of unknown contents, the same memory in every pass."""
        if self._workspace.nbytes < num_bytes + ALIGNMENT_BYTES:
            self._workspace = torch.empty(num_bytes + ALIGNMENT_BYTES, dtype=torch.uint8)
        return -(-self._workspace.data_ptr() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
