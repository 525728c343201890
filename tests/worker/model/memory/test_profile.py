"""The profile's batches: as large as the settings allow and not larger."""

import pytest

from dormouse_worker.model.memory.profile import profile_batches, sampling_once, without_soft_prompts


@pytest.mark.parametrize("seqs", [1, 4, 64])
@pytest.mark.parametrize("tokens", [1, 16, 2048])
@pytest.mark.parametrize("length", [1, 2, 128, 4096])
def test_every_limit_is_reached_and_none_is_passed(seqs, tokens, length):
    batches = profile_batches(
        max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=length, block_size=4, num_groups=2
    )
    for batch in batches:
        assert 0 < batch.num_tokens <= tokens
        assert len(batch.sequences) <= seqs
        for sequence in batch.sequences:
            assert sequence.num_tokens > 0
            assert sequence.end <= length
            assert len(sequence.new_block_ids) == 2
            for block_ids in sequence.new_block_ids:
                assert len(block_ids) * 4 >= sequence.end
                assert set(block_ids) == {0}
    full = min(tokens, min(seqs, tokens) * length)
    assert max(batch.num_tokens for batch in batches) == full
    assert max(len(batch.sequences) for batch in batches) == min(seqs, tokens)
    assert max(sequence.end for batch in batches for sequence in batch.sequences) == length


@pytest.mark.parametrize(
    ("tokens", "length", "expected"), [(100, 1000, [97, 1, 1, 1]), (100, 40, [40, 40, 19, 1]), (100, 10, [10] * 4)]
)
def test_nearly_all_tokens_are_of_one_prompt(tokens, length, expected):
    """The scores of one long prompt take more memory than those of many short ones."""
    prefill, *_ = profile_batches(max_num_seqs=4, max_num_batched_tokens=tokens, max_model_len=length, block_size=4)
    assert [sequence.num_tokens for sequence in prefill.sequences] == expected


def test_where_soft_prompts_are_taken_the_largest_pass_begins_with_one():
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 100, "max_model_len": 50, "block_size": 4}
    without, batches = profile_batches(**sizes), profile_batches(**sizes, takes_soft_prompts=True)
    assert [each.num_virtual_tokens for each in batches[0].new] == [1, 0, 0, 0]
    assert batches[0].sequences == without[0].sequences
    assert batches[1:] == without[1:]
    assert [without_soft_prompts(each) for each in batches] == without


def test_where_logits_have_their_place_the_largest_pass_alone_samples_all():
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 100, "max_model_len": 50, "block_size": 4}
    without = profile_batches(**sizes)
    batches = sampling_once(without)
    assert batches[0] == without[0]
    assert [[each.samples for each in batch.sequences] for batch in batches[1:]] == [
        [True],
        [True, False, False, False],
    ]
    assert [batch.num_tokens for batch in batches] == [batch.num_tokens for batch in without]
