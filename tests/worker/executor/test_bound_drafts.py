"""Drafts of answers that a grammar binds: the tokens are those that come without, and fewer passes bring them."""

from __future__ import annotations

import random

import pytest

from dormouse_worker.executor.testing_drafts import draft_always
from dormouse_worker.model.testing import EOS
from tests.worker.executor import draft_kit
from tests.worker.executor.grammar_kit import BYTES, PROMPT, BoundRank, answers_of, grammar, schema
from tests.worker.executor.test_drafts import corrupt, count
from tests.worker.executor.test_grammar_crossings import kill_and_resume
from tests.worker.executor.test_grammars import SCHEMAS

WAYS = {
    "our kernels": {},
    "torch": {"attention_backend": "sdpa"},
    "tokens promised": {"worker": "own memory"},
}
WORDS = grammar("regex", "([a-d]{3,5} ){6}end")
LIST = schema({"type": "array", "items": {"enum": ["one", "two", "three", 4]}, "minItems": 3, "maxItems": 5})
ASKED = [
    (WORDS, {"temperature": 0.0}),
    (WORDS, {"seed": 5}),
    (WORDS, {"seed": 6, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "choice_index": 2}),
    (WORDS, {"temperature": 0.7, "seed": 7, "repetition_penalty": 1.3, "frequency_penalty": 0.4}),
    (WORDS, {"temperature": 0.0, "logprobs": 3}),
    (WORDS, {"seed": 9, "logit_bias": {BYTES.index(ord("a")): 2.0}, "min_tokens": 30}),
    (WORDS, {"seed": 10, "bad_words_token_ids": (tuple(BYTES.index(ord(c)) for c in "ab"),)}),
    (WORDS, {"temperature": 0.0, "prompt_logprobs": 2}),
    (WORDS, {"seed": 12, "stop_token_ids": (EOS, BYTES.index(ord("d")))}),
    (WORDS, {"seed": 13, "max_tokens": 11}),
    (LIST, {"seed": 3}),
    (LIST, {"seed": 4, "logprobs": 0, "allowed_token_ids": (*range(250), EOS)}),
    *((schema(value), {"seed": number}) for number, value in enumerate(SCHEMAS)),
]


def drafting(directory, worker="cpu", **settings):
    """Return a rank with drafts that has compiled all grammars: their requests come to run at once."""
    rank = BoundRank(directory, worker, **{"speculation_method": "ngram", **settings})
    compiled = [rank.controller._engine._executor.prepare_grammar(bound_by) for bound_by, _ in ASKED]
    assert all(one.is_done(timeout_s=60) for one in compiled)
    return rank


def ask(rank, wishes, *, predicted=None, resumed=None, together=True):
    """Return the answers to these of ASKED, in their order, and the messages that brought them."""
    start, names = len(rank._sent), []
    for number, (bound_by, asked) in enumerate(wishes):
        extra = {"predicted": predicted[number] if predicted else (), "resumed": resumed[number] if resumed else ()}
        names.append(rank.add(bound_by, **extra, **asked))
        if not together:
            rank.finish(start)
    rank.finish(start)
    messages = [message for message in rank._sent[start:] if hasattr(message, "outputs")]
    answers = answers_of(messages)
    return [answers[name] for name in names], messages


def is_same(answer, true):
    """Compare two answers; probabilities of torch's sums may differ in their last bits with the number of rows."""
    assert (answer.token_ids, answer.finish_reason) == (true.token_ids, true.finish_reason)
    assert (answer.refusal, true.refusal, len(answer.logprobs)) == ("", "", len(true.logprobs))
    for row, true_row in zip(answer.logprobs, true.logprobs, strict=True):
        assert row.sampled == pytest.approx(true_row.sampled, abs=1e-5)
    return True


@pytest.fixture(scope="module")
def truth(tiny_model):
    """Return what a rank without drafts answers to each of ASKED, alone, on our kernels."""
    rank = BoundRank(tiny_model)
    answers, messages = ask(rank, ASKED, together=False)
    assert count(messages) == (0, 0)
    rank.close()
    return answers


@pytest.mark.parametrize("way", WAYS)
def test_with_right_and_wrong_drafts_every_bound_answer_is_the_same(tiny_model, truth, way):
    rank = drafting(tiny_model, **WAYS[way])
    for every in (1, 3, 100):
        predicted = [corrupt(answer.token_ids, every) for answer in truth]
        for together in (True, False):
            answers, messages = ask(rank, ASKED, predicted=predicted, together=together)
            assert all(map(is_same, answers, truth))
            scored, taken = count(messages)
            assert together or every == 1 or scored > taken > 0
    rank.close()


@pytest.mark.parametrize("kind", ["same", "ignorant", "broken"])
def test_with_a_draft_model_that_knows_no_grammar_every_bound_answer_is_the_same(tiny_model, truth, tmp_path, kind):
    drafter = getattr(draft_kit, kind)(tmp_path / "drafter", tiny_model)
    rank = drafting(tiny_model, speculation_method="draft", speculation_model=str(drafter), max_num_seqs=64)
    draft_always(rank.controller._engine)
    for together in (True, False):
        answers, messages = ask(rank, ASKED, together=together)
        assert all(map(is_same, answers, truth))
    scored, taken = count(messages)
    assert {"same": scored > taken > 0, "ignorant": scored > 0, "broken": scored >= 0}[kind]
    rank.close()


def test_right_predictions_save_passes_beyond_those_that_forced_tokens_save(tiny_model, truth):
    rank = drafting(tiny_model, num_speculative_tokens=7)
    for number in (0, 1, 3, 10):
        (answer,), _ = ask(rank, ASKED[number : number + 1], predicted=[truth[number].token_ids])
        assert answer.num_passes < 0.6 * truth[number].num_passes
    rank.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "asked", [{"logprobs": 1}, {"allowed_token_ids": (*range(250), EOS)}], ids=lambda each: next(iter(each))
)
def test_what_a_grammar_forces_is_a_draft_where_a_pass_has_to_say_it(tiny_model, way, asked):
    fixed = schema({"const": {"name": "fixed", "list": [1, 2, 3]}})
    plain, rank = BoundRank(tiny_model, **WAYS[way]), drafting(tiny_model, **WAYS[way])
    true, answer = plain.answer(fixed, **asked), rank.answer(fixed, **asked)
    assert is_same(answer, true)
    assert true.num_passes == len(true.token_ids)
    assert answer.num_passes < len(true.token_ids) / 3
    for each in (plain, rank):
        each.close()


@pytest.mark.parametrize("num_tokens", [64, 16])
@pytest.mark.parametrize("worker", ["cpu", "own memory"])
def test_preempted_and_in_chunks_they_are_the_same(tiny_model, truth, worker, num_tokens):
    few = {"num_blocks": 33, "swap_space_bytes": 1 << 20}
    rank = drafting(tiny_model, worker, max_num_batched_tokens=num_tokens, **few)
    wishes, true = ASKED[:6] * 2, truth[:6] * 2
    answers, messages = ask(rank, wishes, predicted=[corrupt(answer.token_ids, 4) for answer in true])
    assert all(map(is_same, answers, true))
    assert rank.has_swapped
    assert count(messages)[1] > 0
    rank.close()


def test_resumed_after_any_token_the_rest_is_the_same(tiny_model, truth):
    rank = drafting(tiny_model)
    for number in (1, 3, 10):
        tokens = truth[number].token_ids
        known = [tokens[:cut] for cut in range(len(tokens))]
        predicted = [corrupt(tokens, 5)] * len(known)
        answers, _ = ask(rank, [ASKED[number]] * len(known), resumed=known, predicted=predicted)
        assert [answer.token_ids for answer in answers] == [tokens[len(before) :] for before in known]
    rank.close()


def test_streams_that_move_between_ranks_with_and_without_drafts_lose_and_repeat_nothing(tiny_model, truth):
    ranks = [drafting(tiny_model), BoundRank(tiny_model), drafting(tiny_model, "own memory")]
    asked = [(fields, bound_by) for bound_by, fields in ASKED[:8]]
    said, kills = kill_and_resume(ranks, asked, random.Random(5), most_passes=3)
    assert [said[number] for number in range(8)] == [answer.token_ids for answer in truth[:8]]
    assert kills >= 5
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_is_left_without_a_token_ends_with_the_reason_where_it_is_and_not_at_its_draft(tiny_model, way):
    rank = drafting(tiny_model, **WAYS[way])
    a, b, c = (BYTES.index(ord(char)) for char in "abc")
    start = len(rank._sent)
    stuck = rank.add(
        grammar("regex", "(ab|cb)c"), predicted=[c, b], bad_words_token_ids=((a, b),), logit_bias={a: 50.0, c: -50.0}
    )
    beside = rank.add(grammar("choice", ["abc"]), predicted=[a, b, c])
    answers = rank.finish(start)
    assert answers[stuck].refusal.startswith("nothing that the grammar allows is left")
    assert answers[stuck].token_ids == [a]
    assert answers[beside].text == "abc"
    rank.close()


def test_in_an_answer_that_quotes_its_prompt_drafts_are_taken_without_a_prediction(tiny_model):
    plain, rank = BoundRank(tiny_model), drafting(tiny_model)
    words = [BYTES.index(ord(char)) for char in "abca abcb abcc abcd "]
    asked = {"prompt": [*PROMPT, *words, *words], "temperature": 0.0, "max_tokens": 40}
    true = plain.answer(WORDS, **asked)
    start = len(rank._sent)
    assert is_same(rank.answer(WORDS, **asked), true)
    assert count([message for message in rank._sent[start:] if hasattr(message, "outputs")])[0] > 0
    for each in (plain, rank):
        each.close()
