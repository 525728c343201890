"""The sampler as a whole: what is greedy, what is random, what cannot go wrong."""

import collections

import numpy as np
import pytest
import torch

from dormouse_worker.model.sampling.draw import draw as draw_token
from dormouse_worker.model.sampling.sampler import sample
from tests.worker.model.sampler_kit import distribution_of, random_logits, row, tokens_of

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]))
INF = float("inf")
NAN = float("nan")


def draw(num, **sampling):
    """Return how often each token comes in `num` draws at consecutive positions."""
    rows = [row(position, temperature=1.0, **sampling) for position in range(num)]
    return collections.Counter(tokens_of(LOGITS.expand(num, -1), rows))


def test_temperature_zero_takes_the_likeliest_and_the_lowest_id_of_equal_ones():
    logits = torch.stack([LOGITS, LOGITS.flip(0), torch.zeros(5)])
    assert tokens_of(logits, [row(), row(), row()]) == [0, 4, 0]


def test_temperature_flattens_and_sharpens():
    hot = tokens_of(LOGITS.expand(2000, -1), [row(i, temperature=100.0) for i in range(2000)])
    cold = tokens_of(LOGITS.expand(2000, -1), [row(i, temperature=0.05) for i in range(2000)])
    assert min(collections.Counter(hot).values()) > 300
    assert set(cold) == {0}


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-38, 1e-6])
@pytest.mark.parametrize("magnitude", [0.1, 1e3, 1e37])
def test_a_tiny_temperature_is_greedy(temperature, magnitude):
    logits = random_logits(1, 50) * magnitude
    assert distribution_of(logits, row(temperature=temperature)).max() == 1
    assert tokens_of(logits, [row(temperature=temperature)]) == tokens_of(logits, [row()])


@pytest.mark.parametrize("temperature", [1e9, 3e38, 1e39, 1.7e308])
def test_a_huge_temperature_is_even_over_what_is_not_masked(temperature):
    even = distribution_of(LOGITS[None], row(temperature=temperature, bad_words_token_ids=((1,),)))
    torch.testing.assert_close(even, torch.tensor([[0.25, 0.0, 0.25, 0.25, 0.25]]))


def test_the_same_seed_choice_and_position_draw_the_same_and_others_do_not():
    logits = torch.zeros(5, 1000)
    first, again, *others = tokens_of(
        logits,
        [
            row(4, temperature=1.0, seed=9, choice_index=1),
            row(4, temperature=1.0, seed=9, choice_index=1),
            row(5, temperature=1.0, seed=9, choice_index=1),
            row(4, temperature=1.0, seed=8, choice_index=1),
            row(4, temperature=1.0, seed=9, choice_index=2),
        ],
    )
    assert first == again
    assert len({first, *others}) == 4


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.full((3000, 700), -INF)
    logits[:, [0, 255, 256, 511, 699]] = 1.0
    drawn = tokens_of(logits, [row(i, temperature=1.0) for i in range(3000)])
    assert set(drawn) == {0, 255, 256, 511, 699}


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 3), (0.5, 700), (1 - 2.0**-53, 700)])
def test_the_ends_of_the_unit_interval_draw_the_first_and_the_last_token_that_has_weight(uniform, token):
    weights = torch.zeros(1, 768)
    weights[0, [3, 700]] = torch.tensor([0.1, 0.1])
    drawn, has_weights = draw_token(weights, np.array([uniform]))
    assert (drawn.tolist(), has_weights.tolist()) == ([token], [True])


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 2, "top_p": 0.5}])
@pytest.mark.parametrize(
    ("line", "token"),
    [
        ([-INF] * 4, 0),
        ([-INF, -INF, 5.0, -INF], 2),
        ([1.0, 2.0, INF, 3.0], 2),
        ([1.0, NAN, 2.0, 3.0], 1),
        ([NAN] * 4, 0),
    ],
)
def test_broken_logits_give_some_token_and_do_not_touch_other_rows(line, token, sampling):
    logits = torch.tensor([line, [0.0, 1.0, 2.0, 0.5]])
    healthy = row(temperature=1.0, seed=3)
    assert tokens_of(logits, [row(**sampling), healthy]) == [token, *tokens_of(logits[1:], [healthy])]


def test_broken_logits_survive_every_parameter():
    everything = row(
        prompt=[0],
        output=[1, 2],
        temperature=1.0,
        min_p=0.1,
        top_p=0.5,
        min_tokens=4,
        stop_token_ids=(1,),
        allowed_token_ids=(1, 2),
        bad_words_token_ids=((2,),),
        logit_bias={1: 5.0},
        repetition_penalty=2.0,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        logprobs=3,
    )
    for value in (INF, -INF, NAN):
        (choice,) = sample(torch.full((1, 4), value), [everything])
        assert 0 <= choice.token_id < 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_dtype_gives_what_its_float32_gives(dtype):
    logits = random_logits(4, 300).to(dtype)
    rows = [row(temperature=1.0, seed=1), row(), row(logit_bias={3: 50.0}), row(temperature=0.5, top_p=0.4, logprobs=2)]
    assert sample(logits, rows) == sample(logits.float(), rows)


def test_logits_are_not_changed():
    logits = random_logits(2, 300)
    before = logits.clone()
    sample(logits, [row(logit_bias={0: 9.0}, temperature=0.5, top_k=3), row(allowed_token_ids=(5,))])
    assert torch.equal(logits, before)


def test_no_rows_are_no_choices():
    assert sample(torch.empty(0, 5), []) == []
