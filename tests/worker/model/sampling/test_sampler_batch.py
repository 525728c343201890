"""A row's result is its own: whatever stands beside it, and wherever its sequence was interrupted."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_worker.model.sampling.sampler import sample
from tests.worker.model.sampler_kit import random_logits, row, tokens_of
from tests.worker.model.sampling.test_sampler_reference import EDITS, FILTERS, rows_with

VOCAB_SIZE = 300  # more than one of the blocks in which the vocabulary is walked
ANY_ROW = rows_with(
    **{**EDITS, **FILTERS, "temperature": st.sampled_from([0, 0.31, 1.0, 1.7])},
    logprobs=st.sampled_from([None, 0, 1, 7, 20]),
)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(ANY_ROW, min_size=1, max_size=6), shuffle=st.randoms(use_true_random=False), seed=st.integers(0, 99)
)
def test_a_result_does_not_depend_on_the_batch(rows, shuffle, seed):
    """Alone, in any order, between strangers and beside itself. Coarse logits have many equal ones."""
    logits = random_logits(len(rows), VOCAB_SIZE, seed=seed).bfloat16().float()
    together = sample(logits, rows)
    assert [sample(logits[i : i + 1], [one])[0] for i, one in enumerate(rows)] == together
    order = [shuffle.randrange(len(rows)) for _ in range(2 * len(rows))]
    assert sample(logits[order], [rows[i] for i in order]) == [together[i] for i in order]
    strangers = torch.full((1, VOCAB_SIZE), float("nan"))
    beside = sample(torch.cat([strangers, logits, strangers]), [row(temperature=1.0), *rows, row(logprobs=20)])
    assert beside[1:-1] == together


def test_a_result_does_not_depend_on_the_number_of_threads():
    logits = random_logits(64, 5000)
    rows = [row(temperature=1.0 + i % 2, top_p=0.9, seed=i, logprobs=3, repetition_penalty=1.1) for i in range(64)]
    on_one = sample(logits, rows)
    torch.set_num_threads(2)
    try:
        assert sample(logits, rows) == on_one
    finally:
        torch.set_num_threads(1)


def generate(prompt, output, num_tokens, **sampling):
    """Return the output continued by a toy model, whose logits depend on the last two tokens."""
    output = list(output)
    while len(output) < num_tokens:
        before = (prompt + output)[-2:]
        logits = random_logits(1, VOCAB_SIZE, seed=before[0] * 1000 + before[1])
        output += tokens_of(logits, [row(prompt=prompt, output=list(output), **sampling)])
    return output


@pytest.mark.parametrize("num_given", range(13))
def test_a_sequence_resumed_after_any_token_goes_on_the_same(num_given):
    sampling = {
        "temperature": 1.2,
        "top_p": 0.95,
        "seed": 2**63 + 5,
        "choice_index": 3,
        "min_tokens": 8,
        "stop_token_ids": (1, 2),
        "bad_words_token_ids": ((5,), (7, 8)),
        "logit_bias": {9: 3.0, 10: 2.0, 11: 2.0},
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.6,
    }
    whole = generate([4, 6], [], 12, **sampling)
    assert generate([4, 6], whole[:num_given], 12, **sampling) == whole


def test_the_answers_of_one_seed_differ_by_choice_and_each_can_be_repeated():
    answers = [generate([4, 6], [], 6, temperature=1.0, seed=1, choice_index=index) for index in range(4)]
    assert len({tuple(answer) for answer in answers}) == 4
    index = random.Random(0).randrange(4)
    assert generate([4, 6], answers[index][:3], 6, temperature=1.0, seed=1, choice_index=index) == answers[index]
