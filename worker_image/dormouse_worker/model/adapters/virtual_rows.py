"""Which rows of a pass are a soft prompt's vectors, and where these lie. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_worker.engine.batch import Batch
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.batch_rows import BatchRows


@dataclass(frozen=True, slots=True)
class VirtualRows:
    """A run of rows of the packed input in whose place vectors of a soft prompt stand."""

    start: int  # in the packed input
    slot: int
    first: int  # of the soft prompt's vectors
    count: int


def find_virtual_rows(batch_rows: BatchRows, batch: Batch, query_starts: Ints) -> tuple[VirtualRows, ...]:
    """Return the runs of a pass; nearly always there are none."""
    return tuple(
        VirtualRows(int(query_starts[index]), sequence.prompt_slot, part.start, end - part.start)
        for index, sequence in batch_rows.prompted
        if (part := batch.sequences[index]).start < (end := min(part.end, sequence.num_virtual_tokens))
    )
