"""What the exit code of an engine or rank process says to the front, beside 0 (asked to end) and 1 (a crash)."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType

EXIT_BROKEN = 4  # forward passes fail: a new process may compute again, so the front starts one
EXIT_GPU_UNHEALTHY = 5  # the device is ill, as its last words say: the front starts nothing on the same device
EXIT_GROUP_BROKEN = 6  # a rank is gone, hangs or disagrees: the front starts a new group
EXIT_LEADER_GONE = 7  # of a rank process: its leader hung up
EXIT_REFUSED = 8  # of a rank process: the leader does not want it, as its last words say
GROUP_EXITS: Mapping[str, int] = MappingProxyType(  # why the ranks cannot go on together, see `errors.GroupBroken`
    {
        "GroupBroken": EXIT_GROUP_BROKEN,
        "RankMissing": 9,
        "RankLost": 10,
        "RankHung": 11,
        "RanksDisagree": 12,
        "GroupPortTaken": 13,
    }
)


def end_words(exit_code: int) -> str:
    """Return how a process ended; a negative code is the signal that killed it."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    names = {int(known): f" ({known.name})" for known in signal.Signals}
    return f"was killed by signal {-exit_code}{names.get(-exit_code, '')}"
