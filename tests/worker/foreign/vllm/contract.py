"""What vLLM's core and its stand-in both keep. Asked by `test_contract`, and under vLLM's interpreter by `ask_core`.

Each function gets a core with a loaded model and blocks that were allocated once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dormouse_worker.engine.testing import make_add
from dormouse_worker.foreign.vllm.interface import Core, Piece
from dormouse_worker.foreign.vllm.requests import to_vllm

NUM_BLOCKS = 40
PROMPT = [3, 9, 27, 17, 51, 25]


def all_of(core: Core, *requests: Any) -> dict[str, list[Piece]]:
    """Return the pieces of requests that run side by side, to their ends."""
    pieces: dict[str, list[Piece]] = {}
    for request in requests:
        core.add(to_vllm(request))
        pieces[request.request_id] = []
    while core.has_work():
        for piece in core.step().pieces:
            pieces[piece.request_id].append(piece)
    return pieces


def said(core: Core, prompt: Sequence[int] = PROMPT, **sampling: Any) -> list[int]:
    """Return the tokens of one request."""
    return tokens(all_of(core, make_add("a", prompt, **{"max_tokens": 8, **sampling}))["a"])


def tokens(pieces: Sequence[Piece]) -> list[int]:
    return [token for piece in pieces for token in piece.token_ids]


def greedy_tokens_are_the_same_whoever_runs_beside(core):
    alone = said(core)
    beside = all_of(core, make_add("a", PROMPT, max_tokens=8), make_add("b", [5, 6], temperature=1.0, max_tokens=8))
    assert tokens(beside["a"]) == alone
    assert len(alone) == 8


def the_last_piece_alone_has_a_finish_reason(core):
    pieces = all_of(core, make_add("a", PROMPT, max_tokens=3))["a"]
    assert [piece.finish_reason for piece in pieces] == ["", "", "length"]


def a_seed_has_its_tokens(core):
    first = said(core, temperature=1.0, seed=5)
    assert said(core, temperature=1.0, seed=5) == first
    assert said(core, temperature=1.0, seed=6) != first


def choices_of_one_seed_differ(core):
    assert said(core, temperature=1.0, seed=5, choice_index=1) != said(core, temperature=1.0, seed=5)


def the_highest_seed_is_taken(core):
    assert len(said(core, temperature=1.0, seed=(1 << 64) - 1)) == 8


def a_stop_token_ends_the_text_and_is_told(core):
    third = said(core)[2]
    pieces = all_of(core, make_add("a", PROMPT, max_tokens=8, stop_token_ids=(third,)))["a"]
    assert tokens(pieces)[-1] == third
    assert pieces[-1].finish_reason == "stop"


def before_min_tokens_no_stop_token_comes(core):
    first = said(core)[0]
    found = said(core, stop_token_ids=(first,), min_tokens=4)
    assert len(found) >= 4
    assert first not in found[:4]


def only_allowed_tokens_come(core):
    assert set(said(core, allowed_token_ids=(7, 11))) <= {7, 11}


def a_biased_token_comes(core):
    assert said(core, logit_bias={13: 100.0}, max_tokens=3) == [13, 13, 13]


def no_bad_word_comes(core):
    first, second = said(core)[:2]
    assert said(core, bad_words_token_ids=((first,),))[0] != first
    assert said(core, bad_words_token_ids=((first, second),))[:2] != [first, second]


def logprobs_begin_with_the_token_itself(core):
    pieces = all_of(core, make_add("a", PROMPT, max_tokens=3, logprobs=2))["a"]
    rows = [row for piece in pieces for row in piece.logprobs]
    assert [ids[0] for ids, _ in rows] == tokens(pieces)
    assert all(len(ids) == len(values) == 3 and ids[1] == ids[0] and values[1] >= values[2] for ids, values in rows)


def a_prompt_has_logprobs_but_for_its_first_token(core):
    first, *_ = all_of(core, make_add("a", PROMPT, max_tokens=2, prompt_logprobs=1))["a"]
    assert [ids[0] for ids, _ in first.prompt_logprobs] == PROMPT[1:]
    assert all(len(ids) == 2 for ids, _ in first.prompt_logprobs)


def an_aborted_request_says_nothing_more(core):
    core.add(to_vllm(make_add("a", PROMPT, max_tokens=400)))
    core.step()
    assert core.load_now().running_ids == ["a"]
    core.abort(["a", "unknown"])
    core.abort(["a"])
    while core.has_work():
        assert not core.step().pieces
    assert core.load_now().running_ids == []


def what_was_computed_of_a_prompt_is_known_until_it_is_forgotten(core):
    core.reset_prefix_cache()
    prompt = [token % 50 for token in range(300)]

    def cached(salt: str = "") -> int:
        request = to_vllm(make_add("a", prompt, max_tokens=2))
        core.add(type(request)("a", prompt, request.params, [], 0, salt))
        first, *_ = [piece for _ in range(2) for piece in core.step().pieces]
        while core.has_work():
            core.step()
        return first.cached_tokens

    assert cached() == 0
    assert cached() >= core.block_shape().num_tokens
    assert cached("another salt") == 0
    core.reset_prefix_cache()
    assert cached() == 0


def refused_parameters_are_a_value_error_and_nothing_runs(core):
    problem = ""
    try:
        core.add(to_vllm(make_add("a", PROMPT, temperature=-1.0)))
    except ValueError as error:
        problem = str(error)
    assert "temperature" in problem
    assert not core.has_work()


def it_is_well_with_nothing_running(core):
    core.check_health()
    assert len(said(core)) == 8


def another_number_of_blocks_can_be_allocated(core):
    before = said(core)
    assert core.allocate(NUM_BLOCKS - 1) == NUM_BLOCKS - 1
    assert said(core) == before


CONTRACT = (
    greedy_tokens_are_the_same_whoever_runs_beside,
    the_last_piece_alone_has_a_finish_reason,
    a_seed_has_its_tokens,
    choices_of_one_seed_differ,
    the_highest_seed_is_taken,
    a_stop_token_ends_the_text_and_is_told,
    before_min_tokens_no_stop_token_comes,
    only_allowed_tokens_come,
    a_biased_token_comes,
    no_bad_word_comes,
    logprobs_begin_with_the_token_itself,
    a_prompt_has_logprobs_but_for_its_first_token,
    an_aborted_request_says_nothing_more,
    what_was_computed_of_a_prompt_is_known_until_it_is_forgotten,
    refused_parameters_are_a_value_error_and_nothing_runs,
    it_is_well_with_nothing_running,
    another_number_of_blocks_can_be_allocated,  # the last: it takes vLLM the longest
)
