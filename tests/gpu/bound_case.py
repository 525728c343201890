"""Sampling of every kind, in one batch and one by one: the tokens and probabilities of a rank on the CPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.results import AtLeast, Row
from dormouse_worker.model.testing import write_tiny_model
from tests.gpu.asked_rank import ON_CPU, asked_rank, count_equal
from tests.gpu.device_kit import Kit
from tests.gpu.parity_case import WIDER
from tests.gpu.sampling_wishes import sampling_wishes


def run(kit: Kit) -> list[Row]:
    """Ask both ranks the same."""
    wishes = sampling_wishes()
    with tempfile.TemporaryDirectory() as folder:
        directory = write_tiny_model(Path(folder), **WIDER)
        with asked_rank(directory, ON_CPU) as rank:
            truth = rank.ask(*wishes)
        with asked_rank(directory, kit.rank_settings) as rank:
            together = rank.ask(*wishes)
            each = [said for one in wishes for said in rank.ask(one)]
            rank.sleep_and_wake(2)
            awake = rank.ask(*wishes)
            num_graphs = rank.num_graphs
    equal = [
        Row(f"bound, {name}: answers of the CPU", count_equal(said, truth), "", goal=AtLeast(len(truth)))
        for name, said in (("together", together), ("one by one", each), ("after a sleep", awake))
    ]
    return [*equal, Row("bound: decode steps recorded", num_graphs, "", goal=AtLeast(1))]
