"""From what each request saw to the figures of a run. Pure; seconds throughout, milliseconds only in the results.

The names and their meaning are those of vLLM's `bench serve`. A request's time begins when it was sent: what the client
itself was late, or held back by --max-concurrency, is told apart and never counts against the server.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median, pstdev

METRICS = ("ttft", "tpot", "itl", "e2el")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


class BadFigure(ValueError):
    """A figure is asked for that there is not; the message names option, value and what is allowed."""


@dataclass(slots=True)
class Seen:
    """One request as its client saw it. Seconds since the run's start."""

    due_s: float  # when it was to be sent
    ready_s: float = math.nan  # when the client came to it
    sent_s: float = math.nan  # when it was sent: --max-concurrency let it through
    token_s: list[float] = field(default_factory=list)  # when each message with tokens came
    input_tokens: int = 0
    output_tokens: int = 0
    draft_tokens: int = 0  # that were proposed by drafts
    accepted_draft_tokens: int = 0  # of these, taken
    is_done: bool = False
    error: str = ""  # the status code's name; "" = none
    words: str = ""  # of the error

    @property
    def is_sent(self) -> bool:
        """Return whether the server was asked."""
        return not math.isnan(self.sent_s)

    @property
    def is_good(self) -> bool:
        """Return whether the whole answer came."""
        return self.is_done and not self.error

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first token, None where none came."""
        return self.token_s[0] - self.sent_s if self.token_s else None

    @property
    def e2el_s(self) -> float | None:
        """Return the time to the last token, None where none came."""
        return self.token_s[-1] - self.sent_s if self.token_s else None

    @property
    def tpot_s(self) -> float | None:
        """Return the time per output token after the first, None where there is no second."""
        if len(self.token_s) < 2 or self.output_tokens < 2:
            return None
        return (self.token_s[-1] - self.token_s[0]) / (self.output_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Return the times between one message with tokens and the next."""
        return [later - before for before, later in pairwise(self.token_s)]


@dataclass(frozen=True, slots=True)
class Run:
    """What happened."""

    requests: Sequence[Seen]
    duration_s: float  # from the first request's time to the last one's end
    loop_lag_s: Sequence[float] = ()  # samples of how late the client's own loop was
    is_interrupted: bool = False


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile, linear between the two nearest values, as numpy's; nan of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def values_of(metric: str, requests: Iterable[Seen]) -> list[float]:
    """Return the metric's values over the requests whose whole answer came."""
    good = [one for one in requests if one.is_good]
    if metric == "itl":
        return [value for one in good for value in one.itl_s]
    return [value for one in good if (value := getattr(one, f"{metric}_s")) is not None]


def spread(name: str, values_s: Sequence[float], percents: Sequence[float]) -> dict[str, float | None]:
    """Return mean, median, deviation and percentiles in milliseconds; None where there are no values."""
    if not values_s:
        names = ("mean", "median", "std", *(f"p{percent:g}" for percent in percents))
        return {f"{one}_{name}_ms": None for one in names}
    known = {"mean": fmean(values_s), "median": median(values_s), "std": pstdev(values_s)}
    asked = {f"p{percent:g}": percentile(values_s, percent) for percent in percents}
    return {f"{one}_{name}_ms": 1e3 * value for one, value in (known | asked).items()}


def is_within(one: Seen, limits_ms: Mapping[str, float]) -> bool:
    """Return whether a request kept every limit. What it does not have (no second token) keeps its limit."""
    if not one.is_good:
        return False
    seen = {metric: getattr(one, f"{metric}_s") for metric in limits_ms}
    return all(value is None or 1e3 * value <= limits_ms[metric] for metric, value in seen.items())


def results(
    run: Run, *, metrics: Sequence[str], percents: Sequence[float], limits_ms: Mapping[str, float]
) -> dict[str, object]:
    """Return everything that is told of a run, in the order in which it is shown."""
    good = [one for one in run.requests if one.is_good]
    sent = [one for one in run.requests if one.is_sent]
    failed = [one for one in run.requests if one.error]
    tokens_in, tokens_out = sum(one.input_tokens for one in good), sum(one.output_tokens for one in good)
    told: dict[str, object] = {
        "interrupted": run.is_interrupted,
        "duration": run.duration_s,
        "completed": len(good),
        "failed": len(failed),
        "unfinished": len(sent) - len(good) - len(failed),
        "not_sent": len(run.requests) - len(sent),
        "errors": dict(sorted(Counter(one.error for one in failed).items())),
        "error_words": {one.error: one.words for one in reversed(failed)},  # of the first of each code
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": _rate(len(good), run.duration_s),
        "output_throughput": _rate(tokens_out, run.duration_s),
        "total_token_throughput": _rate(tokens_in + tokens_out, run.duration_s),
        "tokens_per_message": _rate(tokens_out, sum(len(one.token_s) for one in good)),  # above 1: drafts were taken
    }
    if drafted := sum(one.draft_tokens for one in good):
        told["draft_acceptance"] = _rate(sum(one.accepted_draft_tokens for one in good), drafted)
    if limits_ms:
        within = sum(is_within(one, limits_ms) for one in run.requests)
        told |= {"goodput_limits_ms": dict(limits_ms), "request_goodput": _rate(within, run.duration_s)}
    for metric in metrics:
        told |= spread(metric, values_of(metric, run.requests), percents)
    return told | {"client": client_lateness(run, percents)}


def client_lateness(run: Run, percents: Sequence[float]) -> dict[str, float | None]:
    """Return how late the client itself was, and what --max-concurrency held back, in milliseconds."""
    sent = [one for one in run.requests if one.is_sent]
    return {
        **spread("late", [one.ready_s - one.due_s for one in sent], percents),
        **spread("held_back", [one.sent_s - one.ready_s for one in sent], percents),
        **spread("loop_lag", run.loop_lag_s, percents),
    }


def parse_metrics(text: str) -> list[str]:
    """Return the metrics of a list with commas. Raises BadFigure."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or set(names) - set(METRICS):
        raise BadFigure(f"--percentile-metrics is {text!r}; allowed are {', '.join(METRICS)}, with commas between")
    return list(dict.fromkeys(names))


def parse_percents(text: str) -> list[float]:
    """Return the percentiles of a list with commas. Raises BadFigure."""
    try:
        percents = [float(part) for part in text.split(",")]
    except ValueError:
        percents = []
    if not percents or not all(0 <= percent <= 100 for percent in percents):
        raise BadFigure(f"--metric-percentiles is {text!r}; allowed are numbers from 0 to 100, with commas between")
    return list(dict.fromkeys(percents))


def parse_limits(texts: Iterable[str]) -> dict[str, float]:
    """Return the limits of goodput in milliseconds, of METRIC:MS, several with blanks between. Raises BadFigure."""
    limits: dict[str, float] = {}
    for part in " ".join(texts).split():
        metric, _, number = part.partition(":")
        try:
            limits[metric] = float(number)
        except ValueError:
            limits[metric] = math.nan
        if metric not in GOODPUT_METRICS or not 0 < limits[metric] < math.inf:
            raise BadFigure(
                f"--goodput is {part!r}; allowed is METRIC:MS, where METRIC is one of {', '.join(GOODPUT_METRICS)}"
                " and MS is above 0"
            )
    return limits


def _rate(count: float, base: float) -> float:
    return count / base if base > 0 else 0.0
