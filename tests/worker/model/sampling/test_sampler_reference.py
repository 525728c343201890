"""The sampler against the same rules in plain loops, for any mix of parameters."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_worker.model.sampling.philox import uniforms
from tests.worker.model.sampler_kit import (
    distribution_of,
    random_logits,
    reference_distribution,
    reference_scores,
    reference_token,
    row,
    scores_of,
    tokens_of,
)

VOCAB_SIZE = 23
TOKENS = st.integers(0, VOCAB_SIZE - 1)
EDITS = {
    "allowed_token_ids": st.lists(TOKENS, max_size=6).map(tuple),
    "bad_words_token_ids": st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    "min_tokens": st.integers(0, 6),
    "stop_token_ids": st.lists(TOKENS, max_size=4).map(tuple),
    "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.5, 0.25, 7.0, 100.0]), max_size=4),
    "repetition_penalty": st.sampled_from([1.0, 0.5, 1.3, 4.0]),
    "presence_penalty": st.sampled_from([0.0, -2.0, 0.7, 2.0]),
    "frequency_penalty": st.sampled_from([0.0, -1.0, 0.4, 2.0]),
}
FILTERS = {
    "temperature": st.sampled_from([0.31, 1.0, 1.7]),
    "top_k": st.sampled_from([0, 1, 3, 9, 22, 23, 50]),
    "top_p": st.sampled_from([1.0, 0.93, 0.61, 0.17]),
    "min_p": st.sampled_from([0.0, 0.037, 0.41]),
    "seed": st.integers(0, 2**64 - 1),
    "choice_index": st.integers(0, 15),
}


def rows_with(**parameters):
    return st.builds(
        lambda prompt, output, **sampling: row(prompt=prompt, output=output, **sampling),
        prompt=st.lists(TOKENS, max_size=5),
        output=st.lists(TOKENS, max_size=8),
        **parameters,
    )


def changed(before, **sampling):
    return dataclasses.replace(before, sampling=type(before.sampling)(**{**fields_of(before.sampling), **sampling}))


def fields_of(sampling):
    return {name: getattr(sampling, name) for name in sampling.__struct_fields__}


@pytest.mark.parametrize("name", EDITS)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_each_edit_alone_gives_the_scores_of_the_plain_loop(name, data, seed):
    needed = {name, "stop_token_ids"} if name == "min_tokens" else {name}
    one = data.draw(rows_with(**{field: EDITS[field] for field in needed}))
    logits = random_logits(1, VOCAB_SIZE, seed=seed)
    assert scores_of(logits, one)[0].tolist() == pytest.approx(reference_scores(logits[0].tolist(), one), abs=1e-4)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(rows_with(**EDITS), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_all_edits_together_give_the_scores_of_the_plain_loop(rows, seed):
    logits = random_logits(len(rows), VOCAB_SIZE, seed=seed)
    expected = [reference_scores(line, one) for line, one in zip(logits.tolist(), rows, strict=True)]
    torch.testing.assert_close(scores_of(logits, *rows), torch.tensor(expected), atol=1e-3, rtol=1e-5)
    for token, line in zip(tokens_of(logits, rows), expected, strict=True):
        assert line[token] >= max(line) - 1e-3, "of two that are equal but for rounding either will do"


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(rows_with(**EDITS, **FILTERS), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_the_distribution_and_the_drawn_token_are_those_of_the_plain_loop(rows, seed):
    logits = random_logits(len(rows), VOCAB_SIZE, seed=seed)
    expected = [reference_distribution(line, one) for line, one in zip(logits.tolist(), rows, strict=True)]
    torch.testing.assert_close(distribution_of(logits, *rows), torch.tensor(expected), atol=1e-4, rtol=1e-3)
    for token, one, probabilities in zip(tokens_of(logits, rows), rows, expected, strict=True):
        (number,) = uniforms([one.sampling.seed], [one.position], [one.sampling.choice_index])
        nearby = [min(max(number + shift, 0.0), 1 - 1e-6) for shift in (-1e-5, 0.0, 1e-5)]
        assert token in {reference_token(probabilities, value) for value in nearby}
