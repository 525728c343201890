"""What sleeps under the name of a cache where there is none: nothing, but in the same order as everything else."""

from __future__ import annotations

from dormouse_worker.common.commands import KV_CACHE


class NoCache:
    """Implements `SleepPart` without any memory: only whether it sleeps."""

    tag = KV_CACHE
    wake_bytes = 0
    is_arriving = False

    def __init__(self) -> None:
        self.is_asleep = False

    def __repr__(self) -> str:
        return f"NoCache({'asleep' if self.is_asleep else 'awake'})"

    def save(self, level: int) -> None:
        """See `SleepPart`."""

    def forget(self) -> None:
        """See `SleepPart`."""

    def drop(self) -> int:
        """See `SleepPart`."""
        self.is_asleep = True
        return 0

    def reserve(self) -> None:
        """See `SleepPart`."""

    def cancel(self) -> None:
        """See `SleepPart`."""

    def restore(self) -> None:
        """See `SleepPart`."""
        self.is_asleep = False

    def arrive(self) -> None:
        """See `SleepPart`."""

    def settle(self) -> None:
        """See `SleepPart`."""
