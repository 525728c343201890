"""The penalties: on which tokens, how much, and never out of the finite numbers."""

import pytest
import torch
from transformers.generation import RepetitionPenaltyLogitsProcessor

from tests.worker.model.sampler_kit import random_logits, row, scores_of, tokens_of

LOGITS = torch.tensor([[2.0, -2.0, 0.0, 1.0, -1.0]])


def test_repetition_divides_positive_and_multiplies_negative_scores_of_prompt_and_output():
    scores = scores_of(LOGITS, row(prompt=[0, 1, 0], output=[1, 2], repetition_penalty=2.0))
    assert scores.tolist() == [[1.0, -4.0, 0.0, 1.0, -1.0]]


def test_a_repetition_penalty_below_one_favours_what_was_seen():
    scores = scores_of(LOGITS, row(prompt=[0, 1], repetition_penalty=0.5))
    assert scores.tolist() == [[4.0, -1.0, 0.0, 1.0, -1.0]]


def test_presence_counts_once_and_frequency_each_time_and_only_the_output():
    scores = scores_of(LOGITS, row(prompt=[3, 3], output=[0, 0, 0, 4], presence_penalty=0.5, frequency_penalty=0.25))
    assert scores.tolist() == [[0.75, -2.0, 0.0, 1.0, -1.75]]


def test_negative_penalties_add():
    scores = scores_of(LOGITS, row(output=[0, 0], presence_penalty=-1.0, frequency_penalty=-0.5))
    assert scores.tolist() == [[4.0, -2.0, 0.0, 1.0, -1.0]]


def test_repetition_comes_after_the_bias_and_before_the_other_penalties():
    one = row(output=[2], logit_bias={2: 4.0}, repetition_penalty=2.0, presence_penalty=1.0)
    assert scores_of(LOGITS, one)[0, 2] == 1.0  # (0 + 4) / 2 - 1


def test_a_penalty_turns_a_greedy_choice():
    rows = [row(), row(output=[0], presence_penalty=1.5), row(prompt=[0], repetition_penalty=3.0)]
    assert tokens_of(LOGITS.expand(3, -1), rows) == [0, 3, 3]


@pytest.mark.parametrize("penalty", [5e-324, 1e-40, 1e-30, 1e30, 1e39, 1.7e308])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_no_penalty_leaves_the_finite_numbers(penalty, temperature):
    one = row(prompt=[0, 1, 2, 3, 4], repetition_penalty=penalty, temperature=temperature, bad_words_token_ids=((3,),))
    scores = scores_of(LOGITS, one)
    assert scores[:, [0, 1, 2, 4]].isfinite().all()
    assert scores[0, 3] == -torch.inf
    assert tokens_of(LOGITS, [one]) != [3]


def test_repetition_is_that_of_transformers():
    logits, ids = random_logits(3, 60), torch.tensor([[1, 2, 3, 2], [9, 9, 9, 9], [59, 0, 4, 5]])
    expected = RepetitionPenaltyLogitsProcessor(1.7)(ids, logits.clone())
    rows = [row(prompt=line[:2], output=line[2:], repetition_penalty=1.7) for line in ids.tolist()]
    torch.testing.assert_close(scores_of(logits, *rows), expected)
