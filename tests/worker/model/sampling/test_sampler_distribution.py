"""What is drawn follows the distribution of the plain reference: chi-square tests at fixed seeds."""

import collections
import math

import pytest

from tests.worker.model.sampler_kit import random_logits, reference_distribution, row, tokens_of

NUM_DRAWS = 20_000
VOCAB_SIZE = 600  # more than two of the blocks in which the vocabulary is walked
MIXES = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 2.5},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.02, "temperature": 1.3},
    "all filters": {"temperature": 0.9, "top_k": 100, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    "masks": {"allowed_token_ids": tuple(range(100, 500)), "bad_words_token_ids": ((101,),), "logit_bias": {300: 2.0}},
}


def chi_square_limit(degrees_of_freedom):
    """Return what chance exceeds once in 30,000 times (Wilson and Hilferty's approximation, z = 4)."""
    spread = 2 / (9 * degrees_of_freedom)
    return degrees_of_freedom * (1 - spread + 4 * math.sqrt(spread)) ** 3


def chi_square(tokens, probabilities):
    """Return the statistic and its degrees of freedom; what is expected less than ten times is one class."""
    counts = collections.Counter(tokens)
    assert all(probabilities[token] > 0 for token in counts)
    classes, rest = [], [0.0, 0]
    for token, probability in enumerate(probabilities):
        expected = probability * len(tokens)
        if expected >= 10:
            classes.append((expected, counts[token]))
        else:
            rest = [rest[0] + expected, rest[1] + counts[token]]
    if rest[0] > 0:
        classes.append((max(rest[0], 1.0), rest[1]))
    return sum((count - expected) ** 2 / expected for expected, count in classes), len(classes) - 1


def assert_follows(tokens, probabilities):
    statistic, degrees_of_freedom = chi_square(tokens, probabilities)
    assert degrees_of_freedom > 5
    assert statistic < chi_square_limit(degrees_of_freedom)


def drawn(logits, rows, batch=2000):
    return [
        token
        for start in range(0, len(rows), batch)
        for token in tokens_of(logits.expand(len(rows[start : start + batch]), -1), rows[start : start + batch])
    ]


@pytest.mark.parametrize("mix", MIXES)
def test_draws_over_seeds_follow_the_distribution(mix):
    sampling = {"temperature": 1.0, **MIXES[mix]}
    logits = random_logits(1, VOCAB_SIZE, seed=11, scale=2.0)
    context = {"prompt": list(range(50)), "output": [3, 3, 3, 500, 101]}
    rows = [row(seed=seed, **context, **sampling) for seed in range(NUM_DRAWS)]
    assert_follows(drawn(logits, rows), reference_distribution(logits[0].tolist(), rows[0]))


@pytest.mark.parametrize("keyed_by", ["position", "choice_index"])
def test_draws_of_one_seed_follow_the_distribution(keyed_by):
    logits = random_logits(1, VOCAB_SIZE, seed=12, scale=2.0)
    counter = range(NUM_DRAWS)
    if keyed_by == "position":
        rows = [row(output=range(-position, 0), temperature=1.0, seed=77) for position in counter]
    else:
        rows = [row(temperature=1.0, seed=77, choice_index=index) for index in counter]
    assert_follows(drawn(logits, rows), reference_distribution(logits[0].tolist(), rows[0]))


def test_the_statistic_notices_a_wrong_distribution():
    logits = random_logits(1, VOCAB_SIZE, seed=11, scale=2.0)
    rows = [row(seed=seed, temperature=1.05) for seed in range(NUM_DRAWS)]
    statistic, degrees_of_freedom = chi_square(
        drawn(logits, rows), reference_distribution(logits[0].tolist(), row(temperature=1.0))
    )
    assert statistic > chi_square_limit(degrees_of_freedom)


def test_neighbouring_positions_choices_and_seeds_are_independent():
    """The pair of two draws fills its square evenly: a number that repeats or drifts along a key would not."""
    logits = random_logits(1, 8, scale=0.0)
    for neighbour in ({"position": 1}, {"choice_index": 1}, {"seed": 1}):
        pairs = []
        for base in range(4000):
            first = {"position": 0, "choice_index": 0, "seed": 0, "temperature": 1.0}
            first["seed" if "seed" not in neighbour else "choice_index"] = base
            pairs += [row(**first), row(**{**first, **neighbour})]
        tokens = drawn(logits, pairs)
        squares = [a * 8 + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)]
        assert_follows(squares, [1 / 64] * 64)
