"""What the gateway benchmark found, and the rows that are made of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.results import AtLeast, AtMost, RatioAtLeast, Row
from dormouse_cli.load.figures import percentile

OVERHEAD = "gateway overhead over direct gRPC, 1-token requests, {rate:g} rps"
STREAMING = "streaming through one gateway, {streams} streams, stand-in engine"
HELD = "{count:,} requests arriving during one wake"
SLACK_S = 0.01  # on their ways two requests may pass each other
MEMORY_GOAL_MIB = 64  # for 1,000 held requests: what the gateway's limits count for each, with a little room


@dataclass(frozen=True, slots=True)
class Latencies:
    """From submission to the last token, in milliseconds: of requests to the worker itself and through the gateway."""

    rate_per_s: float
    direct_ms: Sequence[float]
    through_ms: Sequence[float]

    def overhead_ms(self, percent: int) -> float:
        """Return by how much the percentile is higher through the gateway."""
        return percentile(self.through_ms, percent) - percentile(self.direct_ms, percent)

    def __str__(self) -> str:
        return f"overhead p50 {self.overhead_ms(50):.2f} ms, p95 {self.overhead_ms(95):.2f} ms"


@dataclass(frozen=True, slots=True)
class Flow:
    """One repetition of all streams at once."""

    num_messages: int
    num_tokens: int
    wall_s: float
    cpu_s: float = 0.0  # of the gateway, if they went through it

    @property
    def messages_per_s(self) -> float:
        """Return how many messages reached the client in a second."""
        return self.num_messages / self.wall_s

    @property
    def us_per_message(self) -> float:
        """Return the gateway's processor time per message."""
        return 1e6 * self.cpu_s / self.num_messages

    def __str__(self) -> str:
        cost = f", gateway {self.us_per_message:.1f} µs per message" if self.cpu_s else ""
        return f"{self.messages_per_s:,.0f} messages/s of {self.num_tokens / self.num_messages:.2f} tokens{cost}"


@dataclass(frozen=True, slots=True)
class Held:
    """One wake during which requests arrived."""

    num_asked: int
    num_answered: int
    num_overtaken: int  # requests that reached the worker after one that had arrived later
    num_wakes: int
    peak_bytes: int  # of the gateway, by how much more than before the first wake
    hold_s: Sequence[float]

    def __str__(self) -> str:
        words = f"{self.num_answered:,} of {self.num_asked:,} answered, {self.num_overtaken} overtaken"
        return f"{words}, {self.num_wakes} wakes, gateway grew by {self.peak_bytes / 2**20:.1f} MiB"


def overhead_rows(found: Latencies) -> list[Row]:
    """Return the rows of the first line of the table."""
    what = OVERHEAD.format(rate=found.rate_per_s)
    times = [
        Row(f"1-token request, p{percent}", percentile(found.through_ms, percent), "ms", peer)
        for percent in (50, 95)
        for peer in [percentile(found.direct_ms, percent)]
    ]
    return [
        Row(f"{what}: p50", found.overhead_ms(50), "ms", goal=AtMost(1)),
        Row(f"{what}: p95", found.overhead_ms(95), "ms", goal=AtMost(3)),
        *times,
    ]


def streaming_rows(streams: int, paced: Sequence[Flow], direct: Sequence[Flow], through: Sequence[Flow]) -> list[Row]:
    """Return the rows of the second line; `paced` went through the gateway, of the others the client takes all."""
    what = STREAMING.format(streams=streams)
    ours, peer = (median(flow.messages_per_s for flow in flows) for flows in (through, direct))
    cost = median(flow.us_per_message for flow in paced)
    return [
        Row(f"{what}: CPU per token message", cost, "µs", goal=AtMost(100)),
        Row(f"{what}: as fast as it goes, two cores", ours, "messages/s", peer, RatioAtLeast(0.45)),
        Row("the same: gateway CPU per message", median(flow.us_per_message for flow in through), "µs"),
        Row("the same: tokens in a message", *_tokens_per_message(through, direct)),
    ]


def _tokens_per_message(through: Sequence[Flow], direct: Sequence[Flow]) -> tuple[float, str, float]:
    ours, peer = (median(flow.num_tokens / flow.num_messages for flow in flows) for flows in (through, direct))
    return ours, "tokens", peer


def held_rows(wakes: Sequence[Held]) -> list[Row]:
    """Return the rows of the line about requests that arrive during a wake: the worst wake counts."""
    count = wakes[0].num_asked
    what = HELD.format(count=count)
    holds_s = [hold_s for wake in wakes for hold_s in wake.hold_s]
    growth = (max(wake.peak_bytes for wake in wakes[1:]) - wakes[0].peak_bytes) if len(wakes) > 1 else 0
    return [
        Row(f"{what}: answered", min(wake.num_answered for wake in wakes), "requests", goal=AtLeast(count)),
        Row(
            f"{what}: overtaken by one {1e3 * SLACK_S:.0f} ms later",
            max(wake.num_overtaken for wake in wakes),
            "requests",
            goal=AtMost(0),
        ),
        Row(f"{what}: wakes", max(wake.num_wakes for wake in wakes), "wakes", goal=AtMost(1)),
        Row(f"{what}: gateway memory", wakes[0].peak_bytes / 2**20, "MiB", goal=AtMost(MEMORY_GOAL_MIB)),
        Row("the same: more memory in the wakes after the first", growth / 2**20, "MiB"),
        Row("the same: held, p95", percentile(holds_s, 95), "s"),
    ]


def count_overtaken(held_s: Mapping[str, float], taken_s: Mapping[str, float], slack_s: float = SLACK_S) -> int:
    """Return how many requests a worker took after one that was held later; both times later by more than the slack.

    When a request arrived is when its client heard that it is held: gRPC's server hands calls that come in a burst to
    the program in an order of its own, which is neither the client's nor the gateway's.
    """
    arrivals = [(at_s, taken_s[name]) for name, at_s in held_s.items() if name in taken_s]

    def is_overtaken(mine_s: float, reached_s: float) -> bool:
        return any(later_s > mine_s + slack_s and other_s < reached_s - slack_s for later_s, other_s in arrivals)

    return sum(is_overtaken(*arrival) for arrival in arrivals)
