"""Turns of prompts that are asked about: when, and who shares them."""

import pytest

from dormouse_worker.engine.prompt_turns import PromptTurns
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling


def make_running(count, asking=()):
    """Return so many requests, some of them with a prompt that is asked about."""
    return [
        Request(str(n), [1, 2, 3], make_sampling(prompt_logprobs=0 if n in asking else None), arrival_s=0.0)
        for n in range(count)
    ]


def turns_taken(running, *, rows=8, passes=8):
    """Return the names of those who share each turn, by the number of its pass."""
    turns = PromptTurns(rows)
    taken = {n: [request.request_id for request in turns.take(running)] for n in range(1, passes + 1)}
    return {n: names for n, names in taken.items() if names}


def test_every_fourth_pass_is_a_turn():
    assert turns_taken(make_running(8, asking=[5])) == {4: ["0", "5"], 8: ["0", "5"]}


def test_all_that_ask_share_it_with_the_first_in_line():
    assert turns_taken(make_running(8, asking=[2, 5]), passes=4) == {4: ["0", "2", "5"]}
    assert turns_taken(make_running(8, asking=[0, 5]), passes=4) == {4: ["0", "5"]}


@pytest.mark.parametrize(("rows", "running", "has_turns"), [(8, 7, True), (8, 6, False), (4, 4, True), (3, 3, False)])
def test_there_are_no_turns_where_as_many_rows_are_spare(rows, running, has_turns):
    assert bool(turns_taken(make_running(running, asking=[1]), rows=rows)) == has_turns


def test_nobody_who_asks_is_no_turn():
    assert turns_taken(make_running(8)) == {}


@pytest.mark.parametrize(("num_computed", "has_turns"), [(1, True), (2, False)])
def test_the_last_prompt_token_has_a_row_anyway(num_computed, has_turns):
    running = make_running(8, asking=[1])
    running[1].num_computed_tokens = num_computed
    assert bool(turns_taken(running)) == has_turns


def test_only_passes_with_too_few_rows_are_counted():
    turns, scarce = PromptTurns(8), make_running(8, asking=[1])
    for running in (scarce, make_running(8), scarce, make_running(2, asking=[1]), scarce):
        assert turns.take(running) == []
    assert repr(turns) == "PromptTurns(8 rows, 3 scarce passes)"
    assert turns.take(scarce) == scarce[:2]
