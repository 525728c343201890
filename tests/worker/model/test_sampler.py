"""The sampler: what each parameter keeps, what is random, what is reported."""

import collections

import pytest
import torch
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.model.sampler import SamplingRow, _filter, sample

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]))


def row(position=0, **sampling):
    return SamplingRow(make_sampling(**sampling), position)


def draw(num, **sampling):
    """Return how often each token comes in `num` draws at consecutive positions."""
    rows = [row(position, temperature=1.0, **sampling) for position in range(num)]
    return collections.Counter(choice.token_id for choice in sample(LOGITS.expand(num, -1), rows))


def test_temperature_zero_takes_the_likeliest():
    assert [choice.token_id for choice in sample(torch.stack([LOGITS, LOGITS.flip(0)]), [row(), row()])] == [0, 4]


def test_draws_follow_the_distribution():
    counts = draw(4000)
    for token, probability in enumerate([0.5, 0.25, 0.15, 0.07, 0.03]):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)


def test_temperature_flattens_and_sharpens():
    hot = sample(LOGITS.expand(2000, -1), [row(i, temperature=100.0) for i in range(2000)])
    cold = sample(LOGITS.expand(2000, -1), [row(i, temperature=0.05) for i in range(2000)])
    assert min(collections.Counter(choice.token_id for choice in hot).values()) > 300
    assert {choice.token_id for choice in cold} == {0}


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 5}, {0, 1, 2, 3, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.3}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.9, "min_p": 0.4}, {0, 1}),
    ],
)
def test_only_what_the_filters_keep_can_come(sampling, kept):
    assert set(draw(3000, **sampling)) == kept


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(7, 0.8, 0.05), (0, 0.6, 0.0), (20, 1.0, 0.1), (50, 0.95, 0.01)])
def test_the_filters_keep_what_those_of_transformers_keep(top_k, top_p, min_p):
    """Same order: temperature, top-k, top-p, min-p."""
    logits = torch.randn(8, 100, generator=torch.Generator().manual_seed(5)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.7)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    warpers.append(TopPLogitsWarper(top_p))
    warpers.append(MinPLogitsWarper(min_p))
    expected = warpers(None, logits.clone()).softmax(-1)
    kept = _filter((logits / 0.7).softmax(-1), [row(temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)] * 8)
    torch.testing.assert_close(kept / kept.sum(-1, keepdim=True), expected)


def test_a_row_does_not_depend_on_its_neighbours():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    rows = [
        row(0),
        row(1, temperature=1.0, seed=3),
        row(2, temperature=0.5, top_k=4, seed=4),
        row(3, temperature=2.0, top_p=0.7, logprobs=2),
        row(4, temperature=1.0, min_p=0.2),
        row(5, temperature=1.0, min_tokens=9, stop_token_ids=(1, 2)),
    ]
    together = sample(logits, rows)
    assert [sample(logits[i : i + 1], [rows[i]])[0] for i in range(6)] == together


def test_the_same_seed_and_position_draw_the_same_and_others_do_not():
    logits = torch.zeros(2, 1000)
    first, again = sample(logits, [row(4, temperature=1.0, seed=9), row(4, temperature=1.0, seed=9)])
    other_position, other_seed = sample(logits, [row(5, temperature=1.0, seed=9), row(4, temperature=1.0, seed=8)])
    assert first == again
    assert len({first.token_id, other_position.token_id, other_seed.token_id}) == 3


def test_stop_tokens_can_not_come_before_min_tokens():
    early = row(1, min_tokens=2, stop_token_ids=(0, 1))
    late = row(2, min_tokens=2, stop_token_ids=(0, 1))
    assert [choice.token_id for choice in sample(LOGITS.expand(2, -1), [early, late])] == [2, 0]


def test_logprobs_are_those_of_the_raw_distribution():
    masked = row(0, logprobs=2, min_tokens=1, stop_token_ids=(0,))
    choice, silent = sample(LOGITS.expand(2, -1) + 3.0, [masked, row()])
    assert choice.token_id == 1
    assert choice.logprobs.sampled == pytest.approx(float(LOGITS[1]))
    assert choice.logprobs.top_ids == [0, 1]
    assert choice.logprobs.top_logprobs == pytest.approx(LOGITS[:2].tolist())
    assert silent.logprobs is None


def test_each_row_gets_as_many_logprobs_as_it_asked_for():
    choices = sample(LOGITS.expand(3, -1), [row(logprobs=0), row(logprobs=3), row(logprobs=20)])
    assert [len(choice.logprobs.top_ids) for choice in choices] == [0, 3, 5]


def test_no_rows_are_no_choices():
    assert sample(torch.empty(0, 5), []) == []
