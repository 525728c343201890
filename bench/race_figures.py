"""The rows that come of a race: ratios with their goals, the machine's limits, and each side's share of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.contest import Figure
from bench.models import SHAPES, Shape
from bench.race import OURS, TRANSFORMERS, VLLM, Laps
from bench.replies import Reply, num_tokens, tokens_per_s, tpot_ms, ttft_ms, wall_s
from bench.results import AtLeast, Goal, RatioAtLeast, RatioAtMost, Row

HALF_BYTES = 2  # of a weight in bfloat16
TOKENS_UNIT = "output tokens/s"
SPEED = RatioAtLeast(1.25)  # beside vLLM: W1, W3, W4
TTFT = RatioAtMost(0.7)
TPOT = {"tiny": RatioAtMost(0.7)}  # others: READS_WEIGHTS
TPOT_READS_WEIGHTS = RatioAtMost(1)
READ_SHARE = AtLeast(90)
IN_CACHES = frozenset({"tiny"})  # models that are not read from memory for each token


@dataclass(frozen=True, slots=True)
class Kind:
    """A figure of one workload, and what it is compared to."""

    what: str
    unit: str
    figure: Figure
    smaller_is_better: bool = False


def speed_rows(workload: str, name: str, laps: Laps, goals: Mapping[str, Goal]) -> Iterator[Row]:
    """Yield output tokens per second beside each peer that was there; `goals` are by peer."""
    kind = Kind(f"throughput {workload}, {name} bf16", TOKENS_UNIT, tokens_per_s)
    return peer_rows(kind, laps, goals)


def first_token_rows(workload: str, name: str, laps: Laps, goals: Mapping[str, Goal]) -> Iterator[Row]:
    """Yield the time to the first token beside each peer that was there."""
    kind = Kind(f"time to first token {workload}, {name} bf16", "ms", ttft_ms, smaller_is_better=True)
    return peer_rows(kind, laps, goals)


def per_token_rows(workload: str, name: str, laps: Laps) -> Iterator[Row]:
    """Yield the time per output token beside each peer that was there."""
    kind = Kind(f"time per output token {workload}, {name} bf16", "ms", tpot_ms, smaller_is_better=True)
    return peer_rows(kind, laps, {VLLM: TPOT.get(name, TPOT_READS_WEIGHTS)})


def peer_rows(kind: Kind, laps: Laps, goals: Mapping[str, Goal]) -> Iterator[Row]:
    """Yield a figure beside vLLM's best way, that of each of its ways, and beside transformers."""
    ours = laps.median(OURS, kind.figure)
    best = laps.best_way(kind.figure, smaller_is_better=kind.smaller_is_better)
    if best is not None:
        yield Row(f"{kind.what}, beside vLLM", ours, kind.unit, laps.median(best, kind.figure), goals.get(VLLM))
    for way in laps.ways:
        yield Row(f"{kind.what}: {way}", laps.median(way, kind.figure), kind.unit)
    if laps.replies.get(TRANSFORMERS):
        peer = laps.median(TRANSFORMERS, kind.figure)
        yield Row(f"{kind.what}, beside transformers", ours, kind.unit, peer, goals.get(TRANSFORMERS))
    if len(laps.replies) == 1:
        yield Row(kind.what, ours, kind.unit)


def product_rows(workload: str, name: str, laps: Laps) -> Iterator[Row]:
    """Yield the limit of the machine's products and what share of it the model's had; the limits were measured."""
    yield Row(f"limit: products of 64 rows, {name}", median(laps.limits), "GFLOP/s")

    def rate(replies: Sequence[Reply]) -> float:
        return work_gflop(SHAPES[name], replies) / wall_s(replies)

    yield _share_row(f"{workload}, {name} bf16: share of that limit", laps, rate)


def read_rows(workload: str, name: str, laps: Laps) -> Iterator[Row]:
    """Yield the limit of reading and what share of it reading the weights for each token had; it was measured."""
    yield Row(f"limit: reading memory, {name}", median(laps.limits), "GB/s")
    weights_gb = 1e-9 * HALF_BYTES * (SHAPES[name].layer_weights + SHAPES[name].head_weights)

    def rate(replies: Sequence[Reply]) -> float:
        return weights_gb / (1e-3 * tpot_ms(replies))

    goal = None if name in IN_CACHES else READ_SHARE
    yield _share_row(f"{workload}, {name} bf16: share of that limit", laps, rate, goal)


def _share_row(what: str, laps: Laps, rate: Figure, goal: Goal | None = None) -> Row:
    peers = [laps.share_of_limit(way, rate) for way in laps.ways]
    return Row(what, laps.share_of_limit(OURS, rate), "%", max(peers, default=None), goal)


def work_gflop(shape: Shape, replies: Sequence[Reply]) -> float:
    """Return what the products of these replies take at least: prompts from the cache, and attention, take none.

    Each token but the last of an output goes through the layers; each of an output has logits.
    """
    outputs = num_tokens(replies)
    prompts = sum(reply.prompt_tokens - reply.cached_tokens for reply in replies)
    through_layers = prompts + outputs - len(replies)
    return 2e-9 * (through_layers * shape.layer_weights + outputs * shape.head_weights)


def cached_share(rounds: Sequence[Sequence[Reply]]) -> float:
    """Return the share of all prompt tokens that came from the prefix cache, 0 to 100."""
    replies = [reply for replies in rounds for reply in replies]
    return 100 * sum(reply.cached_tokens for reply in replies) / sum(reply.prompt_tokens for reply in replies)
