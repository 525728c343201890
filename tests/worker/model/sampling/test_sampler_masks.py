"""Allowed tokens, bad words, min_tokens and the bias: what cannot be said, and what happens when nothing is left."""

import math

import pytest
import torch
from transformers.generation import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from dormouse_worker.model.sampling.rules import bad_word_endings
from dormouse_worker.model.sampling.sampler import sample
from tests.worker.model.sampler_kit import (
    OUTSIDE,
    distribution_of,
    random_logits,
    row,
    scores_of,
    tokens_of,
)

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]]))


def possible(one):
    """Return which tokens the row's masks leave of LOGITS."""
    return {token for token, score in enumerate(scores_of(LOGITS, one)[0].tolist()) if score > -math.inf}


def test_only_allowed_tokens_come():
    assert possible(row(allowed_token_ids=(3, 1))) == {1, 3}
    assert tokens_of(LOGITS, [row(allowed_token_ids=(3, 4))]) == [3]


def test_stop_tokens_can_not_come_before_min_tokens():
    early = row(1, min_tokens=2, stop_token_ids=(0, 1))
    late = row(2, min_tokens=2, stop_token_ids=(0, 1))
    assert tokens_of(LOGITS.expand(2, -1), [early, late]) == [2, 0]


@pytest.mark.parametrize(
    ("output", "endings"),
    [
        ([], [9]),
        ([1], [9, 2]),
        ([5, 1], [9, 2]),
        ([1, 2], [9, 3]),
        ([2], [9]),
        ([1, 2, 4], [9]),
        ([2, 1], [9, 2]),
    ],
)
def test_a_bad_word_is_forbidden_at_its_last_token(output, endings):
    assert bad_word_endings([(9,), (1, 2), (1, 2, 3)], output) == endings


def test_a_bad_word_of_no_tokens_forbids_nothing():
    assert bad_word_endings([(), (4,)], [1]) == [4]


def test_a_bad_word_that_the_prompt_began_may_be_completed():
    assert 2 in possible(row(prompt=[1], bad_words_token_ids=((1, 2),)))
    assert 2 not in possible(row(prompt=[1], output=[1], bad_words_token_ids=((1, 2),)))


def test_a_bias_of_100_forces_a_token_and_of_minus_100_bans_it():
    assert tokens_of(LOGITS, [row(logit_bias={4: 100.0})]) == [4]
    assert distribution_of(LOGITS, row(temperature=1.0, logit_bias={0: -100.0}))[0, 0] < 1e-30


def test_no_bias_brings_a_masked_token_back():
    assert possible(row(logit_bias={0: 100.0, 1: 100.0}, allowed_token_ids=(0,))) == {0}


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        ({"allowed_token_ids": (2,), "stop_token_ids": (2,), "min_tokens": 5}, {2}),
        ({"allowed_token_ids": (2,), "bad_words_token_ids": ((2,),)}, {2}),
        ({"allowed_token_ids": (1, 2), "bad_words_token_ids": ((2,),), "stop_token_ids": (1,), "min_tokens": 5}, {1}),
        (
            {"allowed_token_ids": (1, 2), "bad_words_token_ids": ((1,), (2,)), "stop_token_ids": (1,), "min_tokens": 5},
            {2},
        ),
        ({"bad_words_token_ids": ((0,), (1,), (2,), (3,), (4,))}, {0, 1, 2, 3, 4}),
        ({"stop_token_ids": (0, 1, 2, 3, 4), "min_tokens": 5}, {0, 1, 2, 3, 4}),
        ({"allowed_token_ids": (OUTSIDE,)}, {0, 1, 2, 3, 4}),
    ],
)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_mask_that_would_leave_nothing_is_not_applied(sampling, left, temperature):
    one = row(temperature=temperature, **sampling)
    assert possible(one) == left
    beside = torch.cat([random_logits(1, 5), LOGITS])
    assert tokens_of(beside, [row(), one])[1] in left


def test_ids_beyond_the_vocabulary_are_of_no_effect_on_any_row():
    far = {
        "stop_token_ids": (5, OUTSIDE),
        "min_tokens": 99,
        "bad_words_token_ids": ((6,),),
        "logit_bias": {7: 100.0},
        "repetition_penalty": 9.0,
        "presence_penalty": 2.0,
    }
    logits = random_logits(3, 5)
    strange = row(prompt=[5, 9], output=[6, 8, -1], **far)
    torch.testing.assert_close(scores_of(logits, strange, strange, row(logit_bias={9: 1.0})), logits)


def test_masks_and_bias_do_what_the_processors_of_transformers_do():
    logits, ids = random_logits(1, 40), torch.tensor([[7, 3, 11, 12]])
    output = ids[0].tolist()
    words = [[5], [12, 6], [11, 12, 8], [3, 12, 9]]
    cases = [
        (NoBadWordsLogitsProcessor(words), {"bad_words_token_ids": tuple(map(tuple, words))}),
        (MinNewTokensLengthLogitsProcessor(0, 5, [2, 4]), {"min_tokens": 5, "stop_token_ids": (2, 4)}),
        (MinNewTokensLengthLogitsProcessor(0, 4, [2, 4]), {"min_tokens": 4, "stop_token_ids": (2, 4)}),
        (SequenceBiasLogitsProcessor({(3,): 2.5, (8,): -4.0}), {"logit_bias": {3: 2.5, 8: -4.0}}),
        (SuppressTokensLogitsProcessor(range(2, 40)), {"allowed_token_ids": (0, 1)}),
    ]
    for processor, sampling in cases:
        torch.testing.assert_close(scores_of(logits, row(output=output, **sampling)), processor(ids, logits.clone()))


class TestGrammar:
    """What a grammar does not allow is never sampled, whatever else is asked."""

    def test_only_what_is_allowed_is_likely_and_other_rows_are_free(self):
        logits = random_logits(3, 40)
        scores = scores_of(logits, row(), row(bound_to={3, 39}), row(bound_to={0, 50}))
        torch.testing.assert_close(scores[0], logits[0])
        assert [scores[i].isfinite().nonzero().flatten().tolist() for i in (1, 2)] == [[3, 39], [0]]
        assert tokens_of(logits, [row(bound_to={7}), row(bound_to={8}, temperature=1.0), row(bound_to={9})]) == [
            7,
            8,
            9,
        ]

    def test_tokens_without_a_bit_are_forbidden(self):
        scores = scores_of(random_logits(1, 100), row(bound_to={1, 63}))
        assert scores[0].isfinite().nonzero().flatten().tolist() == [1, 63]

    def test_bias_makes_nothing_possible_and_min_tokens_yields(self):
        bound = row(bound_to={5}, logit_bias={6: 100.0}, stop_token_ids=(5,), min_tokens=9)
        assert tokens_of(random_logits(1, 40), [bound]) == [5]

    @pytest.mark.parametrize("own", [{"allowed_token_ids": (6, 7)}, {"bad_words_token_ids": ((5,),)}], ids=str)
    def test_where_the_requests_own_masks_leave_nothing_the_row_says_so(self, own):
        bound, free = row(bound_to={5}, **own), row(**own)
        choices = sample(random_logits(3, 40), [bound, free, row(bound_to={5})])
        assert [choice.is_possible for choice in choices] == [False, True, True]
        assert all(choice.is_finite for choice in choices)

    def test_what_the_vocabulary_lacks_is_not_possible(self):
        (choice,) = sample(random_logits(1, 40), [row(bound_to={55})])
        assert not choice.is_possible
