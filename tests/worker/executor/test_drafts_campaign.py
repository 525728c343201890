"""Requests of every kind, drawn at random, on every architecture: with drafts the tokens are those without.

Whoever drafts: the grammar, the caller's prediction, n-grams, earlier answers, a draft model. Preempted, in chunks, and
moved to another worker after a pass or a few, to one without drafts among them. A sample of it runs always;
`DORMOUSE_RECORD=drafts python -m pytest -m slow` with this file runs all.
"""

from __future__ import annotations

import json
import random

import pytest

from dormouse_worker.executor.testing_drafts import draft_always
from dormouse_worker.model.testing import ARCHITECTURES, EOS, write_tiny_model
from tests.worker.executor import draft_kit
from tests.worker.executor.grammar_kit import BYTES, BoundRank, grammar, schema
from tests.worker.executor.test_bound_drafts import ask
from tests.worker.executor.test_drafts import corrupt, count
from tests.worker.executor.test_grammar_crossings import kill_and_resume
from tests.worker.executor.test_grammars import SCHEMAS

OF_OUR_KERNELS = ("cwm", "llama", "ministral", "mistral", "qwen2", "qwen3")  # whose rows have the same bits beside any
CASES = [(name, "float32") for name in sorted(ARCHITECTURES)] + [(name, "bfloat16") for name in OF_OUR_KERNELS]
SAMPLE = [("llama", "bfloat16"), ("gemma2", "float32")]
NUM_REQUESTS, NUM_OF_SAMPLE = 304, 45  # a case; 33 cases are 10,032 requests
TOGETHER = 2, 4, 10  # at once: the more, the more are preempted, and the fewer have room for drafts
ROWS = 40
IN_CHUNKS = {"max_num_batched_tokens": 16}
DRAFTERS = ("n-grams", "earlier answers", "a model nearly the same", "another model")  # each with forced and predicted
A_D = tuple(BYTES.index(ord(char)) for char in "abcd")
BOUND_BY = [grammar("regex", "([a-d]{3,5} ){3}end"), grammar("choice", ["aab", "abba"]), *map(schema, SCHEMAS)]


def draw_request(draw):
    """Return what binds a request, and what else it asks for."""
    run = [draw.randrange(40, 60) for _ in range(draw.randrange(2, 9))]
    asked = {
        "prompt": (run * 6)[: draw.randrange(3, 36)],
        "max_tokens": draw.randrange(4, 25),
        "temperature": draw.choice((0.0, 0.3, 0.8, 1.3)),
        "seed": draw.randrange(1 << 30),
    }
    bound_by = draw.choice(BOUND_BY) if draw.random() < 0.25 else None
    masks = {
        "bad_words_token_ids": ((run[0],), (run[-1], A_D[0])),
        "allowed_token_ids": (*range(40, 60), *A_D, EOS),
        "logit_bias": dict.fromkeys(run, draw.choice((-3.0, 2.0, 5.0))),
    }
    options = {
        "top_p": draw.choice((0.5, 0.9)),
        "top_k": draw.choice((1, 5, 40)),
        "min_p": 0.05,
        "repetition_penalty": draw.choice((0.8, 1.3)),
        "frequency_penalty": draw.choice((-0.5, 0.7)),
        "presence_penalty": 0.5,
        "logprobs": draw.choice((0, 3)),
        "min_tokens": 3,
        "stop_token_ids": (EOS, draw.choice(run)),
        "choice_index": draw.randrange(4),
        **({} if bound_by is not None else masks),
    }
    return bound_by, asked | {name: value for name, value in options.items() if draw.random() < 0.2}


def predict(draw, tokens):
    """Return a prediction that is right, wrong now and then, always wrong, cut, or none."""
    every = draw.choice((0, 1, 2, 3, 5, 100))
    return corrupt(tokens, every)[: draw.randrange(1, 1 + len(tokens))] if every else []


def same(answers, truth):
    """Return how many of these say what is true."""
    for answer, true in zip(answers, truth, strict=True):
        assert (answer.token_ids, answer.finish_reason, answer.refusal) == (true.token_ids, true.finish_reason, "")
        assert len(answer.logprobs) == len(true.logprobs)
    return len(answers)


class Case:
    """Ranks of one model, each with another drafter, and what came of requests to them."""

    def __init__(self, directory, dtype, seed):
        self._draw = random.Random(seed)
        near, other = directory.parent / "near", directory.parent / "other"
        drafter = write_tiny_model(other, "qwen2" if is_llama(directory) else "llama")
        self.plain = BoundRank(directory, dtype=dtype, swap_space_bytes=1 << 18)
        self._ranks = [
            self._make(directory, dtype, **settings)
            for settings in (
                {"speculation_method": "ngram"},
                {"speculation_method": "suffix", **IN_CHUNKS},
                {"speculation_method": "draft", "speculation_model": str(draft_kit.blurred(near, directory))},
                {"speculation_method": "draft", "speculation_model": str(drafter), **IN_CHUNKS},
            )
        ]
        self._told = [[] for _ in self._ranks]
        self.checked = 0

    @staticmethod
    def _make(directory, dtype, **settings):
        fields = {"max_num_seqs": ROWS, "num_speculative_tokens": 4, "swap_space_bytes": 1 << 18, **settings}
        rank = BoundRank(directory, dtype=dtype, **fields)
        draft_always(rank.controller._engine)
        return rank

    def run(self, num_requests):
        """Draw so many requests; ask each rank for a share, and all of them for streams that move between them."""
        wishes = [draw_request(self._draw) for _ in range(num_requests)]
        truth, _ = ask(self.plain, wishes)
        predicted = [predict(self._draw, true.token_ids) for true in truth]
        for number, part in enumerate(self._parts(num_requests)):
            place = number % (1 + len(self._ranks))
            if place == len(self._ranks):
                self._move(wishes[part], predicted[part], truth[part], most_passes=1 + number % 4)
            else:
                answers, messages = ask(self._ranks[place], wishes[part], predicted=predicted[part])
                self.checked += same(answers, truth[part])
                self._told[place] += messages

    def _parts(self, num_requests):
        start = 0
        while start < num_requests:
            end = min(num_requests, start + self._draw.choice(TOGETHER))
            yield slice(start, end)
            start = end

    def _move(self, wishes, predicted, truth, most_passes):
        moved = [
            ({**asked, "predicted": guess}, bound_by)
            for (bound_by, asked), guess in zip(wishes, predicted, strict=True)
        ]
        ngram, suffix, near, other = self._ranks
        said, _ = kill_and_resume([near, self.plain, suffix, other, ngram], moved, self._draw, most_passes=most_passes)
        assert [said[place] for place in range(len(moved))] == [true.token_ids for true in truth]
        self.checked += len(moved)

    def close(self):
        """End the ranks; return how many sequences were preempted, and of each drafter what was scored and taken."""
        preempted = sum(rank.preemptions for rank in self._ranks)
        for rank in (self.plain, *self._ranks):
            rank.close()
        return preempted, dict(zip(DRAFTERS, map(count, self._told), strict=True))


def is_llama(directory):
    return json.loads((directory / "config.json").read_text("utf-8"))["model_type"] == "llama"


def run_case(directory, dtype, num_requests, seed):
    """Run so many requests; return what to record of them."""
    case = Case(directory, dtype, seed)
    case.run(num_requests)
    preempted, drafts = case.close()
    assert case.checked == num_requests
    return {"seed": seed, "requests": case.checked, "preempted": preempted, "drafts and taken": drafts}


@pytest.mark.parametrize(("architecture", "dtype"), SAMPLE)
def test_a_sample_of_all_kinds_says_the_same(tmp_path, architecture, dtype):
    directory = write_tiny_model(tmp_path / "model", architecture)
    found = run_case(directory, dtype, NUM_OF_SAMPLE, seed=7)
    assert found["preempted"] or architecture != "llama", "windows leave room for all"
    assert all(scored > 0 for scored, _ in found["drafts and taken"].values())


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("architecture", "dtype"), CASES)
def test_ten_thousand_requests_say_the_same(tmp_path, architecture, dtype, request, record_property):
    seed = (request.config.getoption("randomly_seed", 0) or 0) + CASES.index((architecture, dtype))
    found = run_case(write_tiny_model(tmp_path / "model", architecture), dtype, NUM_REQUESTS, seed)
    for name, value in found.items():
        record_property(name, value)
    assert all(scored > taken > 0 for scored, taken in found["drafts and taken"].values())
