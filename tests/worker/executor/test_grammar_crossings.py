"""Bound answers while sequences are preempted, chunked, put to sleep, found in the prefix cache, killed and resumed.

Whatever happens, the tokens are those of an answer that nothing happened to.
"""

from __future__ import annotations

import random

import pytest

from tests.worker.executor.grammar_kit import PROMPT, BoundRank, answers_of, grammar, schema
from tests.worker.executor.test_grammars import PERSON, SCHEMAS

LIST = {"type": "array", "items": {"enum": ["one", "two", "three", 4]}, "minItems": 3, "maxItems": 5}
ASKED = [
    ({"temperature": 1.0, "seed": 5}, schema(PERSON)),
    ({"temperature": 0.0}, schema(LIST)),
    ({"temperature": 1.2, "top_p": 0.9, "seed": 9}, grammar("regex", "(abc|abd)-[0-9]{4}-end")),
    ({"frequency_penalty": 0.7, "seed": 2}, schema({"const": {"name": "fixed", "list": [1, 2, 3]}})),
    ({"temperature": 1.0, "seed": 6}, grammar("regex", "([ab]{4}-){9}end")),
]
WORKERS = ("cpu", "own memory", "no torch")


def make(directory, worker="cpu", **settings):
    """Return a rank that has compiled all grammars: their requests come to run at once."""
    rank = BoundRank(directory, worker, **settings)
    compiled = [rank.controller._engine._executor.prepare_grammar(bound_by) for _, bound_by in ASKED]
    assert all(one.is_done(timeout_s=60) for one in compiled)
    return rank


@pytest.fixture(scope="module")
def alone(tiny_model):
    """Return what comes of each of ASKED alone, by its number."""
    rank = make(tiny_model)
    answers = [rank.answer(bound_by, **asked) for asked, bound_by in ASKED]
    rank.close()
    assert all(answer.finish_reason == "stop" for answer in answers)
    return [answer.token_ids for answer in answers]


def ask_all(rank, times=1, resumed=None):
    """Add each of ASKED so many times; return by name which it is."""
    return {
        rank.add(bound_by, resumed=resumed[number] if resumed else (), **asked): number
        for _ in range(times)
        for number, (asked, bound_by) in enumerate(ASKED)
    }


@pytest.mark.parametrize(("num_tokens", "swap"), [(64, 0), (16, 1 << 20)])
@pytest.mark.parametrize("worker", WORKERS)
def test_preempted_and_in_chunks_they_say_the_same(tiny_model, alone, worker, num_tokens, swap):
    few = {"num_blocks": 26, "max_model_len": 96, "swap_space_bytes": swap}
    rank = make(tiny_model, worker, max_num_batched_tokens=num_tokens, **few)
    start = len(rank._sent)
    names = ask_all(rank, times=3)
    answers = rank.finish(start)
    assert [answers[name].token_ids for name in names] == [alone[number] for number in names.values()]
    assert rank.preemptions
    assert rank.has_swapped == bool(swap)
    rank.close()


def test_a_prefix_that_another_answer_left_is_found_and_they_say_the_same(tiny_model, alone):
    rank = make(tiny_model)
    asked, bound_by = ASKED[0]
    whole = rank.answer(bound_by, **asked).token_ids
    start = len(rank._sent)
    longer = [*PROMPT, *whole]
    name = rank.add(bound_by, prompt=longer, **asked)
    rank.finish(start)
    cached = [o.cached_tokens for m in rank._sent[start:] for o in getattr(m, "outputs", ()) if o.request_id == name]
    assert max(cached) > len(PROMPT) + 4, "blocks that forced tokens filled are known"
    assert rank.answer(bound_by, **asked).token_ids == whole == alone[0]
    rank.close()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("worker", WORKERS)
def test_streams_that_a_sleep_cut_go_on_after_it_with_the_same_tokens(tiny_model, alone, worker, level):
    rank = make(tiny_model, worker)
    begun, names = len(rank._sent), ask_all(rank)
    for _ in range(2):
        rank.controller.step()
    rank.controller._engine.abort_all()
    while rank.controller.has_work:
        rank.controller.step()
    said = answers_of(message for message in rank._sent[begun:] if hasattr(message, "outputs"))
    rank.sleep(level)
    rank.wake()
    before = {number: said[name].token_ids if name in said else [] for name, number in names.items()}
    ended = {number for number, tokens in before.items() if tokens == alone[number]}
    start = len(rank._sent)
    resumed = {
        rank.add(bound_by, resumed=before[number], **asked): number
        for number, (asked, bound_by) in enumerate(ASKED)
        if number not in ended
    }
    answers = rank.finish(start)
    for name, number in resumed.items():
        assert before[number] + answers[name].token_ids == alone[number]
    assert resumed
    rank.close()


def kill_and_resume(ranks, asked, random_numbers, most_passes, *, between=lambda _: None):
    """Have one rank after the other compute, each cut off after some passes; return the tokens and how often.

    `between` is what becomes of a rank when it was cut off.
    """
    said, open_ones, kills = {number: [] for number in range(len(asked))}, set(range(len(asked))), 0
    while open_ones:
        rank = ranks[kills % len(ranks)]
        start = len(rank._sent)
        names = {
            rank.add(asked[number][1], resumed=said[number], **asked[number][0]): number for number in sorted(open_ones)
        }
        for _ in range(random_numbers.randint(1, most_passes)):
            if rank.controller.has_work:
                rank.controller.step()
        for name, answer in answers_of(m for m in rank._sent[start:] if hasattr(m, "outputs")).items():
            said[names[name]] += answer.token_ids
            assert not answer.refusal
            if answer.finish_reason is not None:
                open_ones.remove(names[name])
        rank.controller._engine.abort_all()  # nobody hears the rest
        while rank.controller.has_work:
            rank.controller.step()
        between(rank)
        kills += bool(open_ones)
    return said, kills


def test_streams_whose_worker_is_killed_again_and_again_lose_and_repeat_nothing(tiny_model):
    asked = [({"seed": number, "temperature": 1.0}, schema(SCHEMAS[number])) for number in range(16)]
    ranks = [make(tiny_model, worker) for worker in WORKERS]
    start = len(ranks[0]._sent)
    names = [ranks[0].add(bound_by, **fields) for fields, bound_by in asked]
    answers = ranks[0].finish(start)
    said, kills = kill_and_resume(ranks, asked, random.Random(3), most_passes=4)
    assert [said[number] for number in range(len(asked))] == [answers[name].token_ids for name in names]
    assert kills >= 5
    for rank in ranks:
        rank.close()


def test_beside_taken_drafts_of_others_an_answer_is_bound_as_alone(tiny_model):
    """What a grammar forces follows its own sequence's token, wherever that stands among those of a pass."""
    wanted = schema({"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]})
    rank = BoundRank(tiny_model, speculation_method="ngram")
    alone, free = rank.answer(wanted), rank.answer(None, temperature=0.0, stop_token_ids=())
    start = len(rank._sent)
    first = rank.add(None, temperature=0.0, stop_token_ids=(), predicted=free.token_ids)
    bound = rank.add(wanted)
    last = rank.add(None, temperature=0.0, stop_token_ids=(), predicted=free.token_ids)
    answers = rank.finish(start)
    assert answers[first].token_ids == answers[last].token_ids == free.token_ids
    assert answers[first].num_passes < len(free.token_ids), "drafts were taken"
    assert (answers[bound].refusal, answers[bound].token_ids) == ("", alone.token_ids)
    assert answers[bound].num_passes == alone.num_passes
    rank.close()
