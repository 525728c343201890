"""Our kernels choose the tokens that torch's path chooses: all of them, in every variant, on any number of threads."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.model.sampling.exact_softmax import masses_of, weigh
from dormouse_worker.model.sampling.filters import least_weights
from dormouse_worker.model.sampling.native_sampler import NativeSampler, describe_draws
from dormouse_worker.model.sampling.philox import uniforms
from dormouse_worker.model.sampling.sampler import sample
from dormouse_worker.model.scratch import address_of
from tests.worker.model.sampler_kit import random_logits, row, tokens_of
from tests.worker.model.sampling.test_sampler_reference import EDITS, FILTERS, rows_with

INF, NAN = float("inf"), float("nan")
MIXES = {
    "plain": {},
    "cold": {"temperature": 0.05},
    "hot": {"temperature": 50.0},
    "top-1": {"top_k": 1},
    "top-k": {"top_k": 50},
    "nearly all": {"top_k": 254, "top_p": 0.999_999},
    "top-p": {"top_p": 0.95},
    "a small head": {"top_p": 0.001},
    "min-p": {"min_p": 0.05},
    "all filters": {"top_k": 300, "top_p": 0.8, "min_p": 0.02},
}
LOGITS = {
    "equal": torch.zeros,
    "flat": lambda shape: random_logits(*shape, scale=0.3),
    "steep": lambda shape: random_logits(*shape, seed=1, scale=10.0),
    "with a head": lambda shape: random_logits(*shape, seed=2) + 20 * (torch.arange(shape[1]) % 97 == 3),
    "with many equal ones": lambda shape: random_logits(*shape, seed=3).bfloat16().float(),
    "of two values": lambda shape: (random_logits(*shape, seed=4) > 1).float() * 5,
    "mostly forbidden": lambda shape: random_logits(*shape, seed=5).masked_fill(torch.arange(shape[1]) % 5 > 0, -INF),
    "rising": lambda shape: torch.linspace(-30, 0, shape[1]).expand(shape),
}


def native_tokens(kernels, logits, rows):
    return [choice.token_id for choice in sample(logits, rows, NativeSampler(kernels))]


def assert_same(kernels, logits, rows):
    assert native_tokens(kernels, logits, rows) == tokens_of(logits, rows)


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("vocab_size", [1, 3, 255, 256, 1000, 9000])
def test_tokens_are_those_of_torch_for_any_logits_and_vocabulary(kernels, kind, vocab_size):
    rows = [
        row(i, **{"temperature": 0.8, "seed": i + vocab_size, "choice_index": i % 3, **mix})
        for mix in MIXES.values()
        for i in range(4)
    ]
    assert_same(kernels, LOGITS[kind]((len(rows), vocab_size)), rows)


def test_a_weight_has_the_same_bits_as_in_torch(kernels):
    """Top-p is so near to the larger one's mass that one unit more or less in the smaller one's decides."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.stack([-3 * torch.rand(2000, generator=generator), torch.zeros(2000)], dim=1)
    temperatures = (1.5 + 3 * torch.rand(2000, generator=generator)).tolist()
    (seed,) = [seed for seed in range(100) if uniforms([seed], [0], [0]) < 0.1][:1]
    larger, totals = 2**40, masses_of(weigh(logits, temperatures)).sum(-1).tolist()
    for beyond, token in ((1.25, 0), (0.5, 1)):  # 0 is the smaller one: it is kept, and drawn by this seed; or not
        rows = [
            row(seed=seed, temperature=temperature, top_p=(larger + beyond) / total)
            for temperature, total in zip(temperatures, totals, strict=True)
        ]
        assert native_tokens(kernels, logits, rows) == tokens_of(logits, rows) == [token] * len(rows)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        rows_with(**{**EDITS, **FILTERS, "temperature": st.sampled_from([0, 0.31, 1.0, 1.7])}), min_size=1, max_size=6
    ),
    seed=st.integers(0, 1000),
    vocab_size=st.sampled_from([23, 300]),
)
def test_tokens_are_those_of_torch_for_any_mix_of_parameters(kernels, rows, seed, vocab_size):
    assert_same(kernels, random_logits(len(rows), vocab_size, seed=seed).bfloat16(), rows)


@pytest.mark.parametrize(
    "line", [[-INF] * 4, [-INF, -INF, 5, -INF], [1, 2, INF, 3], [1, NAN, 2, 3], [INF, NAN, 1, NAN]]
)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 2, "top_p": 0.5}])
def test_broken_logits_give_the_same_token_and_do_not_touch_other_rows(kernels, line, sampling):
    healthy = row(temperature=1.0, seed=3)
    assert_same(kernels, torch.tensor([line, [0.0, 1.0, 2.0, 0.5]]), [row(**sampling), healthy])


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-6, 1e9, 3e38, 1.7e308])
def test_any_temperature_above_zero_gives_the_token_of_torch(kernels, temperature):
    for magnitude in (0.1, 1e3, 1e37):
        rows = [row(i, temperature=temperature, seed=i) for i in range(20)]
        assert_same(kernels, random_logits(20, 300) * magnitude, rows)


def test_the_number_of_threads_and_the_other_rows_change_nothing(kernels):
    logits = random_logits(40, 3000)
    rows = [row(i, temperature=0.5 + i % 3, top_p=0.9, top_k=i, seed=i) for i in range(40)]
    together = native_tokens(kernels, logits, rows)
    assert [native_tokens(kernels, logits[i : i + 1], [one])[0] for i, one in enumerate(rows)] == together
    kernels.set_num_threads(1)
    assert native_tokens(kernels, logits, rows) == together


PENALTIES = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": -0.4},
    "all": {"repetition_penalty": 0.5, "presence_penalty": -1.0, "frequency_penalty": 0.1},
    "far": {"repetition_penalty": 1e30, "presence_penalty": 2.0},
}


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_penalties_are_those_of_torch_and_leave_the_logits_as_they_were(kernels, name, temperature):
    generator = np.random.default_rng(5)
    logits = random_logits(30, 40)
    logits[:, 7], logits[:, 8], logits[:, 9] = -INF, 0.0, 1e38
    tokens = [generator.integers(-2, 45, size=20 + i).astype(np.int64) for i in range(30)]  # unknown ones among them
    lengths = [i % 20 for i in range(30)]
    samplings = [make_sampling(temperature=temperature, seed=i, **PENALTIES[name]) for i in range(30)]
    draws = describe_draws(samplings, [*map(address_of, tokens)], lengths)
    rows = [
        SimpleNamespace(
            sampling=sampling,
            prompt_token_ids=known[:length],
            output_token_ids=known[length:],
            position=len(known) - length,
            allowed=None,
        )
        for sampling, known, length in zip(samplings, tokens, lengths, strict=True)
    ]
    scores, positions = logits.numpy().copy(), np.array([one.position for one in rows])
    sampler = NativeSampler(kernels)
    expected = tokens_of(logits, rows)
    for _ in range(2):  # nothing is left of a call
        assert sampler.choose(scores, draws, positions).tolist() == expected
    assert np.array_equal(scores, logits.numpy())


def test_one_sampler_serves_vocabularies_and_batches_of_any_size(kernels):
    sampler = NativeSampler(kernels)
    for num_rows, vocab_size in ((1, 10), (5, 4000), (2, 4000), (70, 300), (1, 10)):
        logits = random_logits(num_rows, vocab_size, seed=num_rows)
        rows = [row(i, temperature=1.0, top_p=0.7, seed=i) for i in range(num_rows)]
        assert [choice.token_id for choice in sample(logits, rows, sampler)] == tokens_of(logits, rows)


def test_what_filters_keep_is_drawn_from_whole_and_nothing_else(kernels):
    logits = random_logits(1, 700, scale=1.0)
    sampling = {"temperature": 1.0, "top_k": 90, "top_p": 0.6, "min_p": 0.1}
    rows = [row(seed=seed, **sampling) for seed in range(5000)]
    weights = weigh(logits, [1.0])[:, :700]
    kept = (weights >= least_weights(weights, [rows[0].sampling])).nonzero()[:, 1].tolist()
    assert set(native_tokens(kernels, logits.expand(5000, -1), rows)) == set(kept)


def chosen_of(kernels, scores, bits, **sampling):
    """Return the token of each row of scores, which has these bits, and whether the row was finite before."""
    rows = [row(i, **{"temperature": 0.8, "seed": i, **sampling}) for i in range(len(scores))]
    draws = describe_draws([each.sampling for each in rows], [0] * len(rows), [0] * len(rows))
    return NativeSampler(kernels).choose_bound(scores, draws, np.arange(len(rows)), bits)


@pytest.mark.parametrize("vocab_size", [1, 31, 33, 64, 100, 1000, 9001])
@pytest.mark.parametrize("num_bits", [8, 32, 96, 1024, 9024])
def test_rows_keep_what_their_bits_allow_and_free_rows_all(kernels, vocab_size, num_bits):
    draw = np.random.default_rng(vocab_size * num_bits)
    bits = [None, *(np.packbits(draw.random(num_bits) < share, bitorder="little") for share in (0, 0.1, 0.9, 1))]
    before = random_logits(len(bits), vocab_size).numpy()
    after, expected = before.copy(), before.copy()
    for place, packed in enumerate(bits[1:], start=1):
        allowed = np.zeros(max(vocab_size, num_bits), dtype=bool)
        allowed[:num_bits] = np.unpackbits(packed, bitorder="little")
        expected[place][~allowed[:vocab_size]] = -INF
    tokens, are_whole = chosen_of(kernels, after, bits)
    assert are_whole.all()
    assert (after == expected).all()
    assert tokens.tolist() == chosen_of(kernels, expected, [None] * len(bits))[0].tolist()
    assert chosen_of(kernels, before, bits, temperature=0)[0].tolist() == expected.argmax(-1).tolist()


@pytest.mark.parametrize("place", [0, 17, 99, 998, 999])
@pytest.mark.parametrize("odd", [NAN, INF])
def test_a_row_that_was_not_finite_is_told_before_a_mask_hides_it(kernels, place, odd):
    scores = random_logits(4, 1000).numpy()
    scores[1, place], scores[2, place], scores[3] = odd, -INF, -INF
    nothing = np.zeros(128, dtype=np.uint8)
    assert chosen_of(kernels, scores, [nothing] * 4)[1].tolist() == [True, False, True, False]
    assert chosen_of(kernels, scores, [None] * 4)[1].all()
