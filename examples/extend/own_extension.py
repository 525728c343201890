"""Methods for any worker: an extension class needs no base, and sees the worker as `self`.

Run with `--worker-extension-cls=own_extension.MemoryWords`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dormouse_worker.executor.worker.base import WorkerBase


class MemoryWords:
    """Adds `describe_memory`."""

    def describe_memory(self: WorkerBase) -> str:  # type: ignore[misc]  # it is one once it is mixed in
        """Return what this rank measured, as a sentence."""
        report = self.get_memory_report()
        if report is None:
            return f"rank {self.rank} has not been profiled yet"
        return (
            f"rank {self.rank} holds {report.weights_bytes} bytes of weights, and {report.num_gpu_blocks} blocks of "
            f"{report.block_bytes} bytes fit beside them"
        )
