"""Which adapters requests run with and wait for, as a metric under the name that routers of the field read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

MOST_NAMES = 64  # in a label; more are counted, not named

Names = Callable[[], Set[str]]


class AdapterInfo(Collector):
    """One series: its labels change, and nobody keeps what they were."""

    def __init__(self, max_lora: int, running: Names, waiting: Names, clock: Callable[[], float]) -> None:
        self._max_lora = max_lora
        self._running, self._waiting = running, waiting
        self._clock = clock

    def __repr__(self) -> str:
        return f"AdapterInfo(running={_named(self._running())}, waiting={_named(self._waiting())})"

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metric; its value is the time, so that of two workers' series the newer is known."""
        labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        info = GaugeMetricFamily("vllm:lora_requests_info", "Adapters of the requests in flight.", labels=labels)
        info.add_metric([str(self._max_lora), _named(self._running()), _named(self._waiting())], self._clock())
        yield info


def _named(names: Set[str]) -> str:
    told = sorted(names)[:MOST_NAMES]
    return ",".join(told if len(names) <= MOST_NAMES else [*told, f"and {len(names) - MOST_NAMES} more"])
