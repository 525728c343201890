"""Records the graphs of decode steps and says what they took."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from dormouse_worker.model.graphs import DecodeGraphs, GraphMaker
from dormouse_worker.model.meters import Meter


@dataclass(frozen=True, slots=True)
class Recording:
    """What recording took."""

    num_graphs: int
    seconds: float
    num_bytes: int  # of the device's memory, which they keep asleep too

    def __str__(self) -> str:
        return f"{self.num_graphs} graphs recorded in {self.seconds:.1f} s; they keep {self.num_bytes} bytes"


def record(graphs: DecodeGraphs, maker: GraphMaker, num_groups: int, meter: Meter) -> Recording:
    """Record all sizes. Only dummies are computed: the cache stays as it is. Raises what the device raises."""

    def make() -> None:
        with torch.inference_mode():
            graphs.record(maker, num_groups)
        meter.release_unused()

    meter.release_unused()
    started_s = time.monotonic()
    num_bytes = meter.measure_part("graphs", make)
    return Recording(graphs.num_recorded, time.monotonic() - started_s, num_bytes)
