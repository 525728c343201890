"""The load that fills a worker's whole cache: every block once, within every limit."""

import pytest

from bench.profile_error import DECODE_STEPS, Load, choose_load, full_load
from dormouse_worker.engine.testing import make_report


@pytest.mark.parametrize("max_tokens", [5, 32, 1000])
@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("num_seqs", [1, 7])
def test_every_block_is_filled_once_and_no_limit_is_passed(num_seqs, num_groups, max_tokens):
    load = Load(num_seqs, blocks_each=3, block_size=4, num_groups=num_groups)
    batches = list(full_load(load, max_tokens))
    sequences = [sequence for batch in batches for sequence in batch.sequences]
    blocks = [block for sequence in sequences for group in sequence.new_block_ids for block in group]
    assert sorted(blocks) == list(range(load.num_blocks))
    assert [batch.is_fresh for batch in batches] == [True] + [False] * (len(batches) - 1)
    prefill, decode = batches[: -(DECODE_STEPS - 1)], batches[-(DECODE_STEPS - 1) :]
    assert all(0 < batch.num_tokens <= max_tokens for batch in prefill)
    assert all(len(batch.sequences) == num_seqs for batch in decode)
    for index in range(num_seqs):
        spans = [(item.start, item.end) for item in sequences if item.request_id == str(index)]
        assert spans[0][0] == 0
        assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
        assert spans[-1][1] == load.prompt_len + DECODE_STEPS - 1


def test_sequences_are_as_long_as_blocks_and_model_allow():
    def chosen(num_blocks, max_model_len):
        report = make_report(num_gpu_blocks=num_blocks, max_model_len=max_model_len, block_size=4)
        return choose_load(report, max_num_seqs=3, num_groups=1).blocks_each

    assert chosen(31, 1000) == 10
    assert chosen(31, 35) == 8
    with pytest.raises(AssertionError, match="fewer blocks"):
        chosen(3, 1000)
