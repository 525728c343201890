"""The rows and curves that come of servers under the same load. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Literal

from bench.curves_picture import Panel
from bench.race import OURS
from bench.results import RatioAtMost, Row
from bench.serve_client import PERCENTS, Lap
from dormouse_cli.load.figures import METRICS

FRACTION = 0.7  # of vLLM's saturation rate
GOAL = RatioAtMost(0.8)
WITH_GOAL = ("p99_ttft_ms", "p99_itl_ms")
GOODPUT_LIMITS_MS = {"ttft": 2000.0, "tpot": 200.0}  # who reads along does not wait
TINY_LIMITS_MS = {"ttft": 200.0, "tpot": 20.0}


@dataclass(frozen=True, slots=True)
class Point:
    """One load of a sweep."""

    kind: Literal["concurrency", "fraction"]
    value: float  # requests under way, or share of vLLM's saturation rate
    laps: Mapping[str, Lap]  # by side


@dataclass(frozen=True, slots=True)
class Found:
    """What a race found; sides are `race.OURS` and vLLM's ways."""

    name: str  # of the model
    way: str  # vLLM's side that raced
    places: int  # requests under way in the closed loop
    saturated: Mapping[str, Lap]  # every side in the closed loop
    rounds: Sequence[Mapping[str, Lap]]  # at FRACTION of the way's rate there
    points: Sequence[Point] = ()

    @property
    def rate_per_s(self) -> float:
        """Return vLLM's saturation rate."""
        return self.saturated[self.way].figures["request_throughput"]

    def median(self, side: str, figure: str) -> float:
        """Return a figure's median over the side's rounds."""
        return median(laps[side].figures[figure] for laps in self.rounds)


def goodput_limits_ms(name: str) -> dict[str, float]:
    """Return what a good request of this model keeps."""
    return TINY_LIMITS_MS if name == "tiny" else GOODPUT_LIMITS_MS


def to_rows(found: Found) -> list[Row]:
    """Return all rows of a race."""
    return [*saturation_rows(found), *rate_rows(found), *sweep_rows(found)]


def saturation_rows(found: Found) -> Iterator[Row]:
    """Yield what the sides do when as much is under way as they take."""
    what = f"serve, {found.name} bf16, {found.places} under way"
    ours = found.saturated[OURS].figures
    peer = found.saturated[found.way].figures
    yield Row(f"{what}: saturation rate", ours["request_throughput"], "requests/s", peer["request_throughput"])
    yield Row(f"{what}: output", ours["output_throughput"], "tokens/s", peer["output_throughput"])
    for side, lap in found.saturated.items():
        if side != OURS:
            yield Row(f"{what}: saturation rate of {side}", lap.figures["request_throughput"], "requests/s")


def rate_rows(found: Found) -> Iterator[Row]:
    """Yield every figure at the rate, and what kept the limits."""
    what = _at(FRACTION, found)
    yield Row(f"{what}: rate", FRACTION * found.rate_per_s, "requests/s")
    for metric, percent in product(METRICS, PERCENTS):
        figure = f"p{percent}_{metric}_ms"
        ours, peer = found.median(OURS, figure), found.median(found.way, figure)
        goal = GOAL if figure in WITH_GOAL else None
        yield Row(f"{what}: p{percent} {metric.upper()}", ours, "ms", peer, goal)
    words = ", ".join(f"{metric.upper()} ≤ {limit:g} ms" for metric, limit in goodput_limits_ms(found.name).items())
    for figure, name, unit in (
        ("output_throughput", "output", "tokens/s"),
        ("request_goodput", f"goodput ({words})", "requests/s"),
    ):
        yield Row(f"{what}: {name}", found.median(OURS, figure), unit, found.median(found.way, figure))


def sweep_rows(found: Found) -> Iterator[Row]:
    """Yield the curves' points, one run of each side."""
    for point in found.points:
        ours, peer = (point.laps[side].figures for side in (OURS, found.way))
        if point.kind == "concurrency":
            what = f"serve, {found.name} bf16, {point.value:g} under way: output"
            yield Row(what, ours["output_throughput"], "tokens/s", peer["output_throughput"])
            continue
        for figure in WITH_GOAL:
            percent, metric, _ = figure.split("_")
            yield Row(f"{_at(point.value, found)}: {percent} {metric.upper()}", ours[figure], "ms", peer[figure])


def throughput_panels(races: Iterable[Found]) -> list[Panel]:
    """Return output tokens per second over the requests under way, a panel for each model."""
    return [
        Panel(
            f"{found.name} ({found.way}): output tokens/s over requests under way",
            _curves(found, "output_throughput", [*_points(found, "concurrency"), (found.places, found.saturated)]),
            is_log=True,
        )
        for found in races
    ]


def latency_panels(races: Iterable[Found]) -> list[Panel]:
    """Return TTFT and ITL over the rate in requests per second, two panels for each model."""
    panels = []
    for found, figure in product(races, WITH_GOAL):
        percent, metric, _ = figure.split("_")
        at_rate = {side: _typical(found, side) for side in (OURS, found.way)}
        points = sorted([*_points(found, "fraction"), (FRACTION, at_rate)], key=lambda point: point[0])
        scaled = [(fraction * found.rate_per_s, laps) for fraction, laps in points]
        title = f"{found.name} ({found.way}): {percent} {metric.upper()} in ms over requests/s"
        panels.append(Panel(title, _curves(found, figure, scaled)))
    return panels


def _typical(found: Found, side: str) -> Lap:
    """Return the medians of a side's rounds."""
    return Lap({figure: found.median(side, figure) for figure in found.rounds[0][side].figures})


def _points(found: Found, kind: str) -> list[tuple[float, Mapping[str, Lap]]]:
    return [(point.value, point.laps) for point in found.points if point.kind == kind]


def _curves(
    found: Found, figure: str, points: Sequence[tuple[float, Mapping[str, Lap]]]
) -> dict[str, list[tuple[float, float]]]:
    names = {"Dormouse": OURS, "vLLM": found.way}
    return {name: [(x, laps[side].figures[figure]) for x, laps in points] for name, side in names.items()}


def _at(fraction: float, found: Found) -> str:
    return f"serve at {fraction:.0%} of vLLM's saturation, {found.name} bf16".replace("%", " %")
