"""The rows of the groups' benchmark, from what was measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.groups_recovery import Recovery
from bench.results import AtMost, RatioAtLeast, RatioAtMost, Row

GRACE_S = 5.0  # beyond a start
MAX_CORES_OF_OTHERS = 0.1  # a pair that was disturbed more is no quiet one
Said = Sequence[Sequence[int]]


class Pair(NamedTuple):
    """Tokens per second, one right after the other."""

    group: float
    alone: float
    cores_of_others: float = 0.0  # that other programs took meanwhile

    def __str__(self) -> str:
        return f"{self.group:.1f} / {self.alone:.1f} ({self.cores_of_others:.2f} cores of others)"

    @property
    def is_quiet(self) -> bool:
        """Return whether others disturbed it little."""
        return self.cores_of_others <= MAX_CORES_OF_OTHERS

    @property
    def ratio(self) -> float:
        """Return how many times one process the group is."""
        return self.group / self.alone


@dataclass(slots=True)
class Tally:
    """How many cases said what one worker says."""

    num_cases: int = 0
    different: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        names = f": {'; '.join(self.different)}" if self.different else ""
        return f"{len(self.different)} of {self.num_cases} cases say something else{names}"

    def add(self, name: str, said: Mapping[str, Said], expected: Said) -> None:
        """Compare what was said in each circumstance."""
        self.num_cases += len(said)
        self.different += [f"{name}, {where}" for where, tokens in said.items() if tokens != expected]


def tokens_row(tally: Tally) -> Row:
    """Return the row of what groups say."""
    num_equal = tally.num_cases - len(tally.different)
    what = "greedy tokens (float32) are one worker's, cases of model, T, P and circumstance"
    return Row(what, num_equal, "cases", tally.num_cases, RatioAtLeast(1))


def decode_rows(sizes: tuple[int, int], num_sequences: int, pairs: Sequence[Pair], goal: float) -> list[Row]:
    """Return the row of the middle pair, and how much others disturbed."""
    middle = sorted(pairs, key=lambda pair: pair.ratio)[len(pairs) // 2]
    tensor, pipeline = sizes
    how = f"T={tensor}" if pipeline == 1 else f"P={pipeline}, stages overlap"
    what = f"steady decode, 0.5B shape, {num_sequences} sequences, {how}; beside one process on the same cores"
    others = max(pair.cores_of_others for pair in pairs)
    return [
        Row(what, middle.group, "output tokens/s", middle.alone, RatioAtLeast(goal)),
        Row("the same: most cores that other programs took meanwhile", others, "cores"),
    ]


def traffic_row(short: float, long: float) -> Row:
    """Return the row of a step's bytes over short and over long sequences."""
    what = "bytes of a step to each rank, 64 sequences of 1,900 tokens; beside 300 tokens"
    return Row(what, long, "B", short, RatioAtMost(1.01))


def recovery_rows(found: Sequence[Recovery]) -> list[Row]:
    """Return the rows of the killed ranks: how long, who was lost, who else ended."""
    rows = [
        Row(
            f"P=2, kill -9 of rank {each.rank} under load to the group's next token; beside its start",
            each.recovery_s,
            "s",
            each.start_s,
            AtMost(round(each.start_s + GRACE_S, 1)),
        )
        for each in found
    ]
    asked = sum(each.num_streams for each in found)
    lost, ended = sum(each.num_lost for each in found), sum(each.num_others_ended for each in found)
    what = f"the same: of {asked} streams to two groups, lost or with other tokens"
    return [
        *rows,
        Row(what, lost, "streams", goal=AtMost(0)),
        Row("the same: ranks of the other group that ended", ended, "ranks", goal=AtMost(0)),
    ]
