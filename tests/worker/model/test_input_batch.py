"""What a rank remembers, and the arrays it makes of a batch."""

import numpy as np
import pytest

from dormouse_worker.engine.batch import Batch, NewSequence, ScheduledSequence
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.model.batch_rows import BatchRows
from dormouse_worker.model.input_batch import InputBatch
from tests.worker.model.resident import resident_share


def make_input(windows=(None,)):
    return InputBatch(max_num_seqs=2, max_model_len=12, block_size=4, windows=windows)


def make_batch(*sequences, new=(), released=(), is_fresh=False):
    return Batch(is_fresh, tuple(released), (), (), tuple(new), tuple(sequences))


def make_new(request_id, prompt, output=()):
    return NewSequence(request_id, list(prompt), list(output), make_sampling())


A, B = make_new("a", [1, 2, 3, 4], [5]), make_new("b", [9])
BOTH = make_batch(
    ScheduledSequence("a", 2, 5, ([5, 1],), samples=True),
    ScheduledSequence("b", 0, 1, ([0],), samples=True),
    new=(A, B),
)


def test_its_buffers_are_resident_before_they_are_used():
    """A profile measures what is resident: sequences of 131,072 tokens and their tables."""
    made = InputBatch(max_num_seqs=16, max_model_len=1 << 17, block_size=4, windows=(None, 8))
    assert [resident_share(buffer) for buffer in (made._token_ids, *made._tables)] == [1, 1, 1]
    assert repr(made) == "InputBatch(0 sequences, 16 free rows)"


def test_rows_positions_and_slots_of_a_mixed_batch():
    known = make_input()
    known.update(BOTH)
    packed = known.pack(BOTH)
    (group,) = packed.groups
    assert packed.token_ids.tolist() == [3, 4, 5, 9]
    assert packed.positions.tolist() == [2, 3, 4, 0]
    assert packed.query_starts.tolist() == [0, 3, 4]
    assert group.query_lens.tolist() == [3, 1]
    assert group.context_lens.tolist() == [5, 1]
    assert group.slot_mapping.tolist() == [22, 23, 4, 0]
    assert group.block_tables.tolist() == [[5, 1], [0, 0]]


def test_later_only_what_is_new_comes_and_sampled_tokens_are_known():
    known = make_input()
    known.update(BOTH)
    known.append("a", 70)
    later = make_batch(ScheduledSequence("a", 5, 6, ([],), samples=True))
    known.update(later)
    packed = known.pack(later)
    assert (packed.token_ids.tolist(), packed.groups[0].slot_mapping.tolist()) == ([70], [5])
    assert known.sequence("a").output_token_ids.tolist() == [5, 70]
    assert A.output_token_ids == [5]


def test_a_sequence_tells_the_sampler_what_came_before_without_a_copy():
    known = make_input()
    known.update(BOTH)
    a = known.sequence("a")
    assert (a.prompt_token_ids.tolist(), a.output_token_ids.tolist(), a.position) == ([1, 2, 3, 4], [5], 1)
    assert all(np.shares_memory(ids, known._token_ids) for ids in (a.prompt_token_ids, a.output_token_ids))
    assert repr(a) == "RankSequence(a, row 0, 4 + 1 tokens)"


def test_a_decode_step_has_one_row_for_each_sequence_whoever_has_left():
    known = InputBatch(max_num_seqs=3, max_model_len=12, block_size=4, windows=(None,))
    names = "abc"
    known.update(
        make_batch(
            *(ScheduledSequence(name, 0, 4, ([block],), samples=True) for block, name in enumerate(names)),
            new=[make_new(name, [10 * n, 1, 2, 3]) for n, name in enumerate(names)],
        )
    )
    for n, name in enumerate(names):
        known.append(name, 70 + n)
    for chosen, rows in (("abc", [0, 1, 2]), ("ac", [0, 2]), ("cb", [2, 1]), ("b", [1])):
        step = make_batch(*(ScheduledSequence(name, 4, 5, ([],), samples=True) for name in chosen))
        packed = known.pack(step)
        assert packed.token_ids.tolist() == [70 + row for row in rows]
        assert packed.positions.tolist() == [4] * len(rows)
        assert packed.query_starts.tolist() == list(range(len(rows) + 1))
        assert packed.groups[0].block_tables.tolist() == [[row, 0] for row in rows]


def test_new_blocks_follow_the_known_ones():
    known = make_input()
    known.update(BOTH)
    for token in range(4):
        known.append("a", token)
    later = make_batch(ScheduledSequence("a", 5, 9, ([7],), samples=True))
    known.update(later)
    assert known.pack(later).groups[0].block_tables.tolist() == [[5, 1, 7]]


def test_each_layer_group_has_its_own_table_and_window():
    known = make_input(windows=(None, 2))
    batch = make_batch(ScheduledSequence("a", 4, 5, ([5, 1], [0, 3]), samples=True), new=(A,))
    known.update(batch)
    full, window = known.pack(batch).groups
    assert (full.slot_mapping.tolist(), window.slot_mapping.tolist()) == ([4], [12])
    assert (full.first_positions.tolist(), window.first_positions.tolist()) == ([0], [3])


def test_released_rows_are_used_again_and_unknown_ones_ignored():
    known = make_input()
    known.update(BOTH)
    c = make_batch(
        ScheduledSequence("c", 0, 2, ([6],), samples=True), new=(make_new("c", [7, 8]),), released=("a", "x")
    )
    known.update(c)
    assert known.pack(c).token_ids.tolist() == [7, 8]
    assert repr(known) == "InputBatch(2 sequences, 0 free rows)"
    with pytest.raises(KeyError):
        known.sequence("a")


def test_sequences_that_come_again_in_each_other_s_rows_are_not_mistaken_for_those_of_the_step_before():
    known = make_input()
    known.update(BOTH)
    known.pack(BOTH)
    again = make_batch(
        ScheduledSequence("a", 2, 5, ([5, 1],), samples=True),
        ScheduledSequence("b", 0, 1, ([0],), samples=True),
        new=(A, B),
        released=("a", "b"),
    )
    known.update(again)
    packed = known.pack(again)
    assert [sequence.row for sequence in packed.batch_rows.sequences] == [1, 0]
    assert packed.token_ids.tolist() == [3, 4, 5, 9]
    (of_a, of_b) = packed.groups[0].block_tables.tolist()
    assert (of_a, of_b[:1]) == ([5, 1], [0])  # what stands behind its blocks is not read


def test_a_token_is_noted_for_each_sequence_of_a_lineup_and_for_no_other():
    known = make_input()
    known.update(BOTH)
    batch_rows = known.pack(BOTH).batch_rows
    known.append_each(batch_rows, [70, 80])
    known.append_each(BatchRows(batch_rows.sequences[1:]), [81])
    assert [known.sequence(name).output_token_ids.tolist() for name in "ab"] == [[5, 70], [80, 81]]
    known.append("x", 3)  # released meanwhile


def test_runs_of_tokens_are_noted_for_each_sequence_of_a_lineup():
    known = make_input()
    known.update(BOTH)
    batch_rows = known.pack(BOTH).batch_rows
    known.append_runs(batch_rows, np.array([1, 3]), [70, 80, 81, 82])
    assert [known.sequence(name).output_token_ids.tolist() for name in "ab"] == [[5, 70], [80, 81, 82]]


def test_a_fresh_batch_forgets_everything_before_it():
    known = make_input()
    known.update(BOTH)
    again = make_batch(ScheduledSequence("a", 0, 5, ([1, 2],), samples=True), new=(A,), is_fresh=True)
    known.update(again)
    assert known.pack(again).groups[0].block_tables.tolist() == [[1, 2]]
    assert repr(known) == "InputBatch(1 sequences, 1 free rows)"
