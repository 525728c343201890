"""The golden tokens: generated through the normal path within the model length, repeated in one pass, bit for bit."""

import math

import pytest

from dormouse_worker.common.errors import GoldenTokensDiffer
from dormouse_worker.common.ipc import TokenLogprobs
from dormouse_worker.engine.batch import ModelOutput
from dormouse_worker.engine.testing import make_report
from dormouse_worker.engine.testing_executor import FakeExecutor
from dormouse_worker.model.golden import compare_golden, record_golden, repeat_golden


class Model:
    """A fake executor that gives log-probabilities as asked; `odd_row` of the next pass gets another answer."""

    def __init__(self, windows=(None,)):
        self.executor = FakeExecutor(make_report(block_size=4), windows=windows)
        self.odd_row = None
        self.odd_answer = None
        self.value = -0.25

    def execute(self, batch):
        token = self.executor.execute_model(batch).sampled[0]
        (new,) = batch.new
        if new.sampling.prompt_logprobs is None:
            return ModelOutput([token])
        rows = [TokenLogprobs(self.value, [number], [self.value]) for number in range(new.num_tokens)]
        if self.odd_row is not None:
            rows[self.odd_row] = self.odd_answer
        *prompt, last = rows
        return ModelOutput([type(token)(token.request_id, token.token_id, last)], {"golden": prompt} if prompt else {})

    def record(self, max_model_len=128, num_groups=1):
        return record_golden(
            self.execute, vocab_size=50, max_model_len=max_model_len, block_size=4, num_groups=num_groups
        )


def verify(model, golden):
    compare_golden(golden, repeat_golden(model.execute, golden))


@pytest.mark.parametrize(
    ("max_model_len", "num_prompt", "num_tokens"), [(128, 8, 24), (20, 4, 20), (10, 1, 10), (1, 1, 1)]
)
def test_sixteen_tokens_come_out_or_as_many_as_the_length_allows(max_model_len, num_prompt, num_tokens):
    model = Model()
    golden = model.record(max_model_len)
    assert len(golden.token_ids) == len(golden.rows) == num_tokens
    first, *others = (batch.sequences[0] for batch in model.executor.batches)
    assert first.num_tokens == num_prompt
    assert [sequence.num_tokens for sequence in others[:-1]] == [1] * (num_tokens - num_prompt - 1)
    assert max(batch.sequences[0].end for batch in model.executor.batches) == num_tokens


def test_verifying_is_the_recorded_pass_and_nothing_else():
    model = Model()
    golden = model.record()
    recorded = model.executor.batches[-1]
    model.executor.batches.clear()
    verify(model, golden)
    assert model.executor.batches == [recorded]


def test_every_layer_group_gets_blocks_of_its_own():
    golden = Model(windows=(None, 8)).record(num_groups=2)
    assert golden.block_ids == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11])
    assert golden.num_blocks == 12


@pytest.mark.parametrize("row", [0, 7, 23])
def test_one_bit_at_any_row_is_told(row):
    model = Model()
    golden = model.record()
    value = math.nextafter(model.value, 0)
    model.odd_row, model.odd_answer = row, TokenLogprobs(value, [row], [model.value])
    with pytest.raises(GoldenTokensDiffer, match=rf"after {row + 1} golden tokens moved from -0.25 to {value!r}"):
        verify(model, golden)


def test_another_likeliest_token_is_told_with_both():
    model = Model()
    golden = model.record()
    model.odd_row, model.odd_answer = 5, TokenLogprobs(model.value, [99], [model.value])
    with pytest.raises(GoldenTokensDiffer, match=r"likeliest token after 6 golden tokens was 5 .* now it is 99"):
        verify(model, golden)


def test_the_likeliest_one_s_probability_counts_too():
    model = Model()
    golden = model.record()
    model.odd_row, model.odd_answer = 5, TokenLogprobs(model.value, [5], [-1.0])
    with pytest.raises(GoldenTokensDiffer, match="after 6 golden tokens"):
        verify(model, golden)


def test_a_number_that_became_none_differs_and_one_that_was_none_stays_so():
    model = Model()
    golden = model.record()
    model.value = math.nan
    with pytest.raises(GoldenTokensDiffer, match="to nan"):
        verify(model, golden)
    verify(model, model.record())
