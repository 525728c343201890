"""The messages to the ranks."""

from dormouse_worker.engine.batch import NewSequence, single
from dormouse_worker.engine.testing import make_sampling


def test_a_single_sequence_is_a_fresh_batch_that_samples_once():
    batch = single(NewSequence("a", [1, 2, 3], [4], make_sampling()), ([7],), start=2)
    (sequence,) = batch.sequences
    assert (batch.is_fresh, batch.num_tokens, batch.request_ids) == (True, 2, ["a"])
    assert (sequence.start, sequence.end, sequence.new_block_ids, sequence.samples) == (2, 4, ([7],), True)
