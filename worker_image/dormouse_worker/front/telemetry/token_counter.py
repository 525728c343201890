"""Counts what happens with every token in plain numbers, which become metrics when somebody asks for them.

The client library's own counters take a lock for each of their parts. All of this happens in one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class TokenTally(Collector):
    """Owns the number of generated tokens and the times between them; a registry collects it."""

    def __init__(self, model_name: str, buckets_s: Sequence[float]) -> None:
        """Take the upper bounds of the buckets, ascending; one without a bound is added."""
        self._model_name = model_name
        self._bounds_s = tuple(buckets_s)
        self._counts = [0] * (len(self._bounds_s) + 1)
        self._sum_s = 0.0
        self._num_tokens = 0

    def __repr__(self) -> str:
        return f"TokenTally({self._num_tokens} tokens)"

    def add(self, num_tokens: int, since_previous_s: float | None) -> None:
        """Count tokens that came together, so long after those before; None = they are the first."""
        self._num_tokens += num_tokens
        if since_previous_s is not None:
            self._counts[bisect_left(self._bounds_s, since_previous_s / num_tokens)] += num_tokens
            self._sum_s += since_previous_s

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as a registry wants them."""
        generated = CounterMetricFamily("vllm:generation_tokens", "Tokens generated.", labels=["model_name"])
        generated.add_metric([self._model_name], self._num_tokens)
        yield generated
        latency = HistogramMetricFamily(
            "vllm:inter_token_latency_seconds", "Time between tokens.", labels=["model_name"]
        )
        bounds = [*map(floatToGoString, self._bounds_s), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        latency.add_metric([self._model_name], buckets, self._sum_s)
        yield latency
