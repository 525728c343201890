"""Logits that are not finite: whose request ends, what is counted, and when the worker gives up."""

import pytest

from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.errors import GoldenTokensDiffer, LogitsNotFinite, RankLost
from dormouse_worker.common.ipc import State, StepOutputs
from dormouse_worker.engine.engine import NOT_FINITE
from dormouse_worker.engine.testing import make_add
from dormouse_worker.engine.testing_stages import AheadFakeExecutor
from tests.worker.engine.engine_kit import StagedEngine, expected


def steps(rank):
    return [message for message in rank.sent if isinstance(message, StepOutputs)]


def ask(rank, *names, odd=()):
    """Add requests and step until all have ended; return what was told of those that failed."""
    start = len(steps(rank))
    rank.executor.not_finite = set(odd)
    for name in names:
        rank.controller.handle(make_add(name, range(9), max_tokens=2))
    while rank.controller.has_work:
        rank.controller.step()
        rank.controller.rest()
    return {name: why for message in steps(rank)[start:] for name, why in message.failed.items()}


def test_only_the_request_whose_logits_they_are_ends(ready):
    assert ask(ready, "a", "b", odd="a") == {"a": NOT_FINITE}
    tokens = [
        token for message in steps(ready) for o in message.outputs if o.request_id == "b" for token in o.token_ids
    ]
    assert len(tokens) == 2
    assert ready.status.state is State.READY


def test_they_are_counted_once(ready):
    ask(ready, "a", "b", odd="a")
    assert sum(message.not_finite for message in steps(ready)) == 1


def test_their_prefixes_are_forgotten(ready):
    ask(ready, "a", odd="a")
    ask(ready, "b")
    assert next(o.cached_tokens for message in steps(ready) for o in message.outputs if o.request_id == "b") == 0


def damage(rank, error=None):
    """Have the model say something else to its golden prompt than at its first start, or not compute it."""
    rank.fail_next("verify", error or GoldenTokensDiffer("the golden tokens differ"))


def test_two_passes_in_a_row_of_a_damaged_model_fail_the_worker(ready):
    damage(ready)
    ask(ready, "a", odd="a")
    assert ready.status.state is State.READY
    ask(ready, "b", odd="b")
    assert (ready.status.state, ready.status.failure_reason) == (State.FAILED, "LogitsNotFinite")
    assert (
        ready.status.failure_message
        == f"2 forward passes in a row: {NOT_FINITE} (GoldenTokensDiffer: the golden tokens differ)"
    )


def test_prompts_that_are_too_much_for_a_sound_model_take_nobodys_worker_away(ready):
    for number in range(5):
        ask(ready, name := f"odd{number}", odd=[name])
    assert ready.executor.calls.count("verify") == 2, "once for two passes"
    assert ready.status.state is State.READY


def test_who_waits_while_a_sound_model_is_verified_is_served_as_ever(ready):
    ask(ready, "a", odd="a")
    prompt = range(100, 120)  # three chunks; the first one shares a pass with the odd row
    ready.executor.not_finite = {"b"}
    for add in (make_add("b", range(9), max_tokens=2), make_add("long", prompt, max_tokens=3)):
        ready.controller.handle(add)
    while ready.controller.has_work:
        ready.controller.step()
    assert "verify" in ready.executor.calls
    said = [
        token for message in steps(ready) for o in message.outputs if o.request_id == "long" for token in o.token_ids
    ]
    assert said == expected(prompt, 3)


def test_a_model_that_can_not_be_verified_counts_as_damaged(ready):
    ask(ready, "a", odd="a")
    damage(ready, RuntimeError("out of memory"))
    ask(ready, "b", odd="b")
    assert ready.status.failure_message.endswith("(RuntimeError: out of memory)")


def test_a_group_that_breaks_while_it_is_verified_goes_on_elsewhere(ready):
    ask(ready, "a", odd="a")
    ready.fail_next("verify", RankLost("rank 1 is gone"))
    with pytest.raises(RankLost, match="rank 1 is gone"):
        ask(ready, "b", odd="b")
    assert ready.status.state is State.READY


def test_who_waits_while_a_damaged_model_is_verified_is_told_why(ready):
    damage(ready)
    names = "abcdef"  # a pass takes four of them, and eight tokens
    assert ask(ready, *names, odd=names).keys() == set(names)
    assert ready.status.state is State.FAILED


@pytest.mark.parametrize("between", ["beside", "alone"])
def test_one_finite_row_shows_that_the_model_computes(ready, between):
    for number in range(3):
        odd = f"odd{number}"
        ask(ready, odd, *(["fine"] if between == "beside" else []), odd=[odd])
        ask(ready, "fine too")
    assert ready.status.state is State.READY


def test_a_pass_that_samples_nothing_shows_nothing(ready):
    ask(ready, "a", odd="a")
    damage(ready)
    ready.executor.not_finite = {"b"}
    ready.controller.handle(make_add("b", range(20), max_tokens=2))  # three chunks: the first ones sample nothing
    while ready.controller.has_work:
        ready.controller.step()
    assert ready.status.state is State.FAILED


def test_a_model_that_has_no_numbers_from_the_start_fails(profiled):
    profiled.fail_next("initialize_cache", LogitsNotFinite("not finite"))
    assert profiled.command(InitializeCache(10, 2))[0] == "LogitsNotFinite"
    assert (profiled.status.state, profiled.status.failure_reason) == (State.FAILED, "LogitsNotFinite")


def test_batches_that_were_begun_before_it_was_known_count_once():
    ahead = StagedEngine(AheadFakeExecutor)
    ahead.executor.not_finite = {"a"}
    ahead.add("a", max_tokens=9)
    told = []
    while (outputs := ahead.engine.step()) is not None:
        told.append((dict(outputs.failed), outputs.not_finite))
    assert told == [({"a": NOT_FINITE}, 1), ({}, 0)]
    assert ahead.engine.num_odd_in_a_row == 1
    ahead.engine.check_integrity()
