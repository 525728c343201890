"""What the ladder's benchmark found, as it goes from the sandbox to the program outside, and the cold start's rows.

Pure. Times are in seconds.
"""

from __future__ import annotations

import msgspec

from bench.ladder.journal import Entry
from bench.results import AtMost, Row
from dormouse_cli.load.figures import percentile

LEVEL_GOALS_MS = {1: {50: 100, 95: 250}, 2: {95: 300}}
ZERO_GOALS_S = {1: 0.05, 5: 0.05, 25: 1.0}  # by how many deployments start at a time


class Answer(msgspec.Struct, frozen=True):
    """What a client saw of one request."""

    asked_s: float
    told_s: float = 0.0  # the gateway's first word was there: that it is held, or the answer
    first_s: float = 0.0  # the first token was there; 0 = it was refused
    start: str = ""  # from where the worker came, as the gateway says
    hold_s: float = 0.0  # as the gateway says
    error: str = ""


class Wake(msgspec.Struct, frozen=True):
    """One request that woke a model."""

    level: int
    total_s: float  # from the request to its first token
    own_s: float  # of it: the worker's own wake
    command_s: float  # of the rest: from the request until the worker was told to wake

    @property
    def beyond_s(self) -> float:
        """Return what the request waited beyond the worker's own wake."""
        return self.total_s - self.own_s


class ColdStart(msgspec.Struct, frozen=True):
    """One request that brought a model back from no pod at all."""

    forward_s: float  # from the worker being ready until the request reached it
    total_s: float  # from the request to its first token


class Starts(msgspec.Struct, frozen=True):
    """Cold starts of so many deployments at a time."""

    at_a_time: int
    starts: tuple[ColdStart, ...]


class Moment(msgspec.Struct, frozen=True):
    """How things stood at one moment of the night."""

    at_s: float  # since the night began
    state: str  # phase and rung, in a word
    num_pods: int
    num_held: int
    num_asked: int  # requests so far


class ColdStarts(msgspec.Struct, frozen=True):
    """Everything that `bench coldstart` measures."""

    wakes: tuple[Wake, ...]
    zero: tuple[Starts, ...]
    night: tuple[Moment, ...]


def to_wake(level: int, answer: Answer, entries: list[Entry]) -> Wake:
    """Join what the client saw and what the worker noted since. Raises ValueError if it did not wake once."""
    moments = {what: [entry.at_s for entry in entries if entry.what == what] for what in ("waking", "woken")}
    if answer.error or len(moments["waking"]) != 1 or len(moments["woken"]) != 1:
        raise ValueError(f"a request to a model at level {level} ended with {answer}, the worker noted {entries}")
    begun_s, woken_s = moments["waking"][0], moments["woken"][0]
    return Wake(level, answer.first_s - answer.asked_s, woken_s - begun_s, begun_s - answer.asked_s)


def to_cold_start(answer: Answer, entries: list[Entry]) -> ColdStart:
    """Join what the client saw and what the worker noted since. Raises ValueError if it did not start once."""
    ready = [entry.at_s for entry in entries if entry.what == "ready"]
    requests = [entry.at_s for entry in entries if entry.what == "request"]
    if answer.error or len(ready) != 1 or len(requests) != 1:
        raise ValueError(f"a request to a model at zero ended with {answer}, the worker noted {entries}")
    return ColdStart(requests[0] - ready[0], answer.first_s - answer.asked_s)


def coldstart_rows(found: ColdStarts) -> list[Row]:
    """Return the rows: each line of the table, and what they are made of."""
    rows = [row for level in LEVEL_GOALS_MS for row in _wake_rows(level, found)]
    return rows + [row for starts in found.zero for row in _start_rows(starts)]


def _wake_rows(level: int, found: ColdStarts) -> list[Row]:
    wakes = [wake for wake in found.wakes if wake.level == level]
    what = f"level-{level} wake: request at the gateway → first token, beyond the worker's own wake time"
    goals = LEVEL_GOALS_MS[level]
    rows = []
    for percent in (50, 95):
        goal = AtMost(goals[percent]) if percent in goals else None
        rows.append(Row(f"{what}: p{percent}", _ms([wake.beyond_s for wake in wakes], percent), "ms", goal=goal))
    told, total = ([getattr(wake, name) for wake in wakes] for name in ("command_s", "total_s"))
    return [
        *rows,
        Row("of it: until the worker is told to wake, p50", _ms(told, 50), "ms"),
        Row(f"the same, with the stand-in's own wake, p50 of {len(wakes)}", _ms(total, 50), "ms"),
    ]


def _start_rows(found: Starts) -> list[Row]:
    name = f"{found.at_a_time} deployment{'s' if found.at_a_time > 1 else ''}"
    forwards, totals = ([getattr(start, name) for start in found.starts] for name in ("forward_s", "total_s"))
    goal = AtMost(1e3 * ZERO_GOALS_S[found.at_a_time]) if found.at_a_time in ZERO_GOALS_S else None
    what = f"from Zero: pod Ready → first held request forwarded, {name} at a time"
    return [
        Row(f"{what}: p95", _ms(forwards, 95), "ms", goal=goal),
        Row(f"the same: p50 of {len(forwards)}", _ms(forwards, 50), "ms"),
        Row("the same: request → first token, with the stand-in's own start, p50", _ms(totals, 50), "ms"),
    ]


def _ms(values_s: list[float], percent: int) -> float:
    return 1e3 * percentile(values_s, percent)
