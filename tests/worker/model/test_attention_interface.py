"""The description of a packed batch."""

from dormouse_worker.engine.batch import Batch, ScheduledSequence
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.model.attention.interface import build_metadata


def test_rows_positions_and_slots_of_a_mixed_batch():
    batch = Batch(
        (
            ScheduledSequence("a", [1, 2, 3], 2, [5, 1], make_sampling(), True, 0),
            ScheduledSequence("b", [9], 0, [0], make_sampling(), True, 0),
        )
    )
    metadata = build_metadata(batch, block_size=4)
    assert metadata.query_starts.tolist() == [0, 3, 4]
    assert metadata.query_lens.tolist() == [3, 1]
    assert metadata.context_lens.tolist() == [5, 1]
    assert metadata.positions.tolist() == [2, 3, 4, 0]
    assert metadata.slot_mapping.tolist() == [22, 23, 4, 0]
    assert metadata.slots(0).tolist() == [20, 21, 22, 23, 4]
