"""The golden tokens: through the normal path, within the model length, and compared."""

import dataclasses

import pytest

from dormouse_worker.engine.testing import FakeExecutor, make_report
from dormouse_worker.errors import GoldenTokensDiffer
from dormouse_worker.model.golden import GoldenTokens, compare_golden, generate_golden

GOLDEN = GoldenTokens((1, 2, 3), (-0.1, -0.2, -0.3))


@pytest.mark.parametrize(
    ("max_model_len", "num_prompt", "num_tokens"), [(128, 8, 16), (20, 4, 16), (10, 1, 10), (1, 1, 1)]
)
def test_sixteen_tokens_come_out_or_as_many_as_the_length_allows(max_model_len, num_prompt, num_tokens):
    executor = FakeExecutor(make_report(block_size=4))
    golden = generate_golden(executor.execute_model, vocab_size=50, max_model_len=max_model_len, block_size=4)
    assert len(golden.token_ids) == num_tokens
    assert executor.batches[0].sequences[0].num_tokens == num_prompt
    assert max(batch.sequences[0].end for batch in executor.batches) <= max_model_len


def test_every_layer_group_gets_blocks_of_its_own():
    executor = FakeExecutor(make_report(block_size=4), windows=(None, 8))
    generate_golden(executor.execute_model, vocab_size=50, max_model_len=128, block_size=4, num_groups=2)
    full, window = executor.batches[0].sequences[0].new_block_ids
    assert (len(full), len(window), set(full) & set(window)) == (6, 6, set())


def test_the_same_tokens_pass():
    compare_golden(GOLDEN, dataclasses.replace(GOLDEN, logprobs=(-0.1, -0.2, -0.3001)))


def test_another_token_is_told_with_both_lists():
    with pytest.raises(GoldenTokensDiffer, match=r"\[1, 2, 3\], now it is \[1, 2, 4\]"):
        compare_golden(GOLDEN, dataclasses.replace(GOLDEN, token_ids=(1, 2, 4)))


@pytest.mark.parametrize("value", [-0.31, float("nan")])
def test_the_same_tokens_with_other_probabilities_are_told(value):
    with pytest.raises(GoldenTokensDiffer, match="moved from"):
        compare_golden(GOLDEN, dataclasses.replace(GOLDEN, logprobs=(-0.1, -0.2, value)))
