"""The controller while batches are under way: commands and returning ids wait for them."""

import pytest

from dormouse_worker.common.commands import AbortAll, CheckHealth, Sleep
from dormouse_worker.common.errors import RankLost
from dormouse_worker.common.ipc import AbortRequests, CommandRequest, State, StepOutputs
from dormouse_worker.engine.testing import make_add


def outputs(pipeline):
    """Return the ids in each message with outputs, in order."""
    messages = (message for message in pipeline.sent if isinstance(message, StepOutputs))
    return ["".join(output.request_id for output in message.outputs) for message in messages]


@pytest.fixture
def busy(pipeline):
    """Return it with a batch under way: that of b."""
    pipeline.controller.handle(make_add("a", max_tokens=9))
    pipeline.controller.handle(make_add("b", max_tokens=9))
    pipeline.controller.step()
    assert [batch.request_ids for batch in pipeline.executor.under_way] == [["b"]]
    return pipeline


def test_a_command_waits_for_the_batches_under_way_and_their_outputs_are_sent_first(busy):
    assert busy.command(CheckHealth()) == ("", "")
    assert busy.executor.under_way == []
    assert outputs(busy) == ["a", "b"]


def test_after_everything_was_aborted_it_may_sleep_at_once(busy):
    assert busy.command(AbortAll()) == ("", "")
    assert outputs(busy) == ["a", "b", "ab"]
    assert busy.command(Sleep()) == ("", "")
    assert busy.status.state is State.ASLEEP


def test_an_id_may_come_back_while_its_aborted_request_is_under_way(busy):
    busy.controller.handle(AbortRequests(["b"]))
    busy.controller.handle(make_add("b", [7], max_tokens=1))
    assert outputs(busy) == ["a", "b", ""], "what the old one said is not told"
    while busy.controller.has_work:
        busy.controller.step()
    assert "".join(outputs(busy)).count("b") == 2, "its abort, and the token of the new one"
    busy.controller.rest()


def test_a_group_that_breaks_before_a_command_is_told_to_who_asked_and_ends_the_engine(busy):
    _, _ = busy.controller._engine._under_way.batches.pop()

    def lost():
        raise RankLost("rank 1: its process ended")

    busy.controller._engine._under_way.batches.append((busy.executor.under_way[0], lost))
    busy.controller.handle(CommandRequest(7, CheckHealth()))
    assert busy.sent[-1].error_reason == "RankLost"
    with pytest.raises(RankLost, match="rank 1"):
        busy.controller.check_group()
    assert "RankLost" in repr(busy.controller._failures)


def test_a_fake_that_was_abandoned_says_so(pipeline):
    pipeline.executor.abandon()
    assert pipeline.executor.calls[-1] == "abandon"
