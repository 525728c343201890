"""Top-k, top-p and min-p: what they keep, alone and in order, and that transformers keeps the same."""

import pytest
import torch
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.worker.model.sampler_kit import distribution_of, random_logits, row, tokens_of

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]]))


def kept(logits, **sampling):
    return set(distribution_of(logits, row(temperature=1.0, **sampling))[0].nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 5}, {0, 1, 2, 3, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 1e-9}, {0}),
        ({"top_p": 1 - 1e-9}, {0, 1, 2, 3, 4}),
        ({"min_p": 0.29}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.83}, {0, 1}),  # top-p counts what top-k left: 0.75 of 0.9 suffice
        ({"top_k": 3, "top_p": 0.9, "min_p": 0.4}, {0, 1}),
        ({"top_p": 0.83, "min_p": 0.4}, {0, 1}),  # min-p after top-p: top-p keeps three, of all five
    ],
)
def test_only_what_the_filters_keep_can_come(sampling, expected):
    assert kept(LOGITS, **sampling) == expected
    rows = [row(i, temperature=1.0, **sampling) for i in range(2000)]
    assert set(tokens_of(LOGITS.expand(2000, -1), rows)) == expected


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"top_k": 2}, {0, 1, 2}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.6}, {0, 1, 2}),
        ({"top_p": 0.1}, {0}),
        ({"top_k": 2, "top_p": 0.1}, {0}),
    ],
)
def test_tokens_as_likely_as_the_last_one_kept_stay(sampling, expected):
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.2, 0.1]]))
    assert kept(logits, **sampling) == expected


def test_masked_tokens_do_not_come_back_when_fewer_than_top_k_are_left():
    assert kept(LOGITS, top_k=4, allowed_token_ids=(2, 3)) == {2, 3}
    assert kept(LOGITS, top_k=4, top_p=0.99, allowed_token_ids=(2, 3)) == {2, 3}


@pytest.mark.parametrize("temperature", [0.7, 1.6])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(7, 0.8, 0.05), (0, 0.6, 0.0), (20, 1.0, 0.1), (50, 0.95, 0.01), (300, 0.3, 0.0), (0, 1.0, 0.2), (299, 0.99, 0.0)],
)
def test_the_filters_keep_what_those_of_transformers_keep(temperature, top_k, top_p, min_p):
    logits = random_logits(8, 300, seed=5)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    warpers.append(MinPLogitsWarper(min_p))
    expected = warpers(None, logits.clone()).softmax(-1)
    rows = [row(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)] * 8
    torch.testing.assert_close(distribution_of(logits, *rows), expected)
