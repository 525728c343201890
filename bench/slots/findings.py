"""What is found in the sandbox of pools, as it goes to the program outside, and its rows. Pure; times in seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.results import AtMost, Row
from dormouse_cli.load.figures import percentile


class Switch(msgspec.Struct, frozen=True):
    """One request to a member that sleeps at level 1 while another has the slot."""

    total_s: float  # from the request to its first token
    sleep_s: float  # of the holder
    wake_s: float  # of who was called, its copy and its golden tokens in it
    start: str  # from where it came, as the gateway says

    def __str__(self) -> str:
        parts = f"asleep in {1e3 * self.sleep_s:.0f} ms, awake in {1e3 * self.wake_s:.0f} ms"
        return f"{self.start}: first token after {1e3 * self.total_s:.0f} ms, of which {parts}"

    @property
    def beyond_s(self) -> float:
        """Return what the request waited beyond both workers' own work."""
        return self.total_s - self.sleep_s - self.wake_s


def switch_rows(found: Sequence[Switch]) -> list[Row]:
    """Return the rows of switches. The goal is for what lies beyond the copy; nothing is taken off for that here."""
    total_ms, beyond_ms = [1e3 * one.total_s for one in found], [1e3 * one.beyond_s for one in found]
    where = "switch A→B, level 1, real workers and API server: request to first token"
    return [
        Row(f"{where}, p50", percentile(total_ms, 50), "ms", goal=AtMost(150)),
        Row(f"{where}, p95", percentile(total_ms, 95), "ms", goal=AtMost(400)),
        Row(f"{where}, beyond both workers' own work, p50", percentile(beyond_ms, 50), "ms"),
        Row(f"{where}: the sleep, p50", percentile([1e3 * one.sleep_s for one in found], 50), "ms"),
        Row(
            f"{where}: the wake with its golden tokens, p50", percentile([1e3 * one.wake_s for one in found], 50), "ms"
        ),
    ]
