"""Records the graphs of decode steps, on all ranks or on none, and says what they took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dormouse_worker.model.graphs import DecodeGraphs, Graph, GraphMaker
from dormouse_worker.model.memory.resident import Meter
from dormouse_worker.model.parallel.communicator import Communicator

logger = logging.getLogger(__name__)


class NoGraphs(Exception):
    """A rank of the group cannot record its decode steps; says which and why."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What recording took."""

    num_graphs: int
    seconds: float
    num_bytes: int  # of the device's memory, which they keep asleep too

    def __str__(self) -> str:
        return f"{self.num_graphs} graphs recorded in {self.seconds:.1f} s; they keep {self.num_bytes} bytes"


class _OnAllRanks:
    """A `GraphMaker` for one rank: after each graph it asks whether the others have theirs, and goes on if all do."""

    def __init__(self, maker: GraphMaker, communicator: Communicator) -> None:
        self._maker, self._communicator = maker, communicator

    def record(self, work: Callable[[], None]) -> Graph:
        """See `GraphMaker`. Raises NoGraphs on all ranks if one of them cannot record the work."""
        graph, failure = None, None
        try:
            graph = self._maker.record(work)
        except Exception as error:  # noqa: BLE001  the other ranks are told before it goes on
            failure = error
        refusing = self._communicator.agree(is_ready=failure is None)
        if failure is not None and not _forbids_recording(failure):
            raise failure
        if graph is None or refusing:
            raise NoGraphs(f"rank {', '.join(map(str, refusing))} cannot record them: {failure or 'its log says why'}")
        return graph


def record(
    graphs: DecodeGraphs, maker: GraphMaker, num_groups: int, *, meter: Meter, communicator: Communicator
) -> Recording | None:
    """Record all sizes. Only dummies are computed: the cache stays as it is.

    Returns None, and a line in the log, where a rank's pass cannot be recorded: steps are launched one by one then.
    Raises what else the device raises, a lack of memory for example.
    """

    def make() -> None:
        with torch.inference_mode():
            graphs.record(_OnAllRanks(maker, communicator), num_groups)
        meter.release_unused()

    meter.release_unused()
    started_s = time.monotonic()
    try:
        num_bytes = meter.measure_part("graphs", make)
    except NoGraphs as error:
        logger.warning("decode steps run without graphs: %s", error)
        return None
    return Recording(graphs.num_recorded, time.monotonic() - started_s, num_bytes)


def _forbids_recording(failure: Exception) -> bool:
    """Return whether the pass may still be computed, only not recorded: torch says so in many ways."""
    return isinstance(failure, RuntimeError) and not isinstance(failure, torch.OutOfMemoryError)
