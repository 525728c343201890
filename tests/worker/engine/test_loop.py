"""The loop: when it waits, when it rests, when it ends."""

import pytest

from dormouse_worker.common.commands import CheckHealth, InitializeCache, Shutdown, Sleep
from dormouse_worker.common.errors import RankHung, RankLost, RankMissing, RanksDisagree
from dormouse_worker.common.ipc import CommandRequest, EngineStatus, Heartbeat, RankStatus, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.loop import HEARTBEAT_S, EngineBroken, EngineLoop
from dormouse_worker.engine.testing import ManualClock, make_add
from dormouse_worker.engine.testing_executor import FakeExecutor
from dormouse_worker.engine.testing_transport import ListTransport

INITIALIZE = CommandRequest(1, InitializeCache(10))


def run(*deliveries):
    """Run a loop over these deliveries to its end; return its transport."""
    transport, clock = ListTransport(deliveries), ManualClock()
    settings = EngineSettings(model="m", block_size=4)
    controller = Controller(settings, FakeExecutor(clock=clock), send=transport.send, clock=clock)
    EngineLoop(transport, controller).run()
    return transport


def test_it_starts_serves_and_ends_with_the_front():
    transport = run([INITIALIZE], [make_add(max_tokens=2)], [])
    kinds = [type(message).__name__ for message in transport.sent]
    assert kinds == [*["EngineStatus"] * 4, "CommandResult", "StepOutputs", "StepOutputs"]


def test_it_waits_only_when_it_has_no_work():
    transport = run([INITIALIZE], [make_add(max_tokens=2)], [])
    assert transport.timeouts_s == [HEARTBEAT_S, HEARTBEAT_S, 0.0, HEARTBEAT_S]


def test_an_idle_round_is_a_heartbeat_and_a_recount():
    transport = run([], [])
    assert [message for message in transport.sent if not isinstance(message, EngineStatus)] == [
        Heartbeat(),
        Heartbeat(),
    ]


def test_a_working_round_is_no_heartbeat():
    transport = run([INITIALIZE], [make_add(max_tokens=4)], [], [], [])
    assert Heartbeat() not in transport.sent
    assert len([message for message in transport.sent if isinstance(message, StepOutputs)]) == 4


def test_it_ends_after_shutdown_without_another_step():
    transport = run([INITIALIZE], [make_add(), CommandRequest(2, Shutdown())], [make_add("late")])
    assert transport.sent[-1].command_id == 2
    assert len(transport.timeouts_s) == 2


def test_two_forward_passes_that_fail_in_a_row_end_the_process_and_everybody_in_them_was_told():
    transport, clock = ListTransport([[INITIALIZE], [make_add("a")], [make_add("b")]]), ManualClock()
    executor = FakeExecutor(clock=clock)
    controller = Controller(EngineSettings(model="m", block_size=4), executor, send=transport.send, clock=clock)
    loop = EngineLoop(transport, controller)
    controller.start()
    assert loop.turn()
    executor.fail_once["execute_model"] = RuntimeError("boom")
    assert loop.turn(), "once may have been the batch"
    executor.fail_once["execute_model"] = RuntimeError("boom")
    with pytest.raises(EngineBroken, match="2 forward passes in a row"):
        loop.turn()
    failed = [message.failed for message in transport.sent if isinstance(message, StepOutputs)]
    assert [list(one) for one in failed] == [["a"], ["b"]]


def test_a_lost_block_ends_the_process_rather_than_serve_from_it():
    transport, clock = ListTransport([[INITIALIZE], []]), ManualClock()
    controller = Controller(
        EngineSettings(model="m", block_size=4), FakeExecutor(clock=clock), send=transport.send, clock=clock
    )
    loop = EngineLoop(transport, controller)
    controller.start()
    assert loop.turn()
    controller._engine._scheduler.tables.pool.allocate(1)
    with pytest.raises(RuntimeError, match="blocks are wrong"):
        loop.turn()


def test_a_broken_group_ends_the_process_and_its_requests_are_not_told_that_they_failed():
    """They can be continued elsewhere."""
    transport, clock = ListTransport([[INITIALIZE], [make_add("a")]]), ManualClock()
    executor = FakeExecutor(clock=clock)
    controller = Controller(EngineSettings(model="m", block_size=4), executor, send=transport.send, clock=clock)
    loop = EngineLoop(transport, controller)
    controller.start()
    assert loop.turn()
    executor.fail_once["execute_model"] = RankLost("rank 1: gone")
    with pytest.raises(RankLost, match="rank 1"):
        loop.turn()
    assert not [message for message in transport.sent if isinstance(message, StepOutputs)]


def test_an_idle_group_that_breaks_ends_the_process():
    transport, clock = ListTransport([[], []]), ManualClock()
    executor = FakeExecutor(clock=clock)
    loop = EngineLoop(transport, Controller(EngineSettings(model="m"), executor, send=transport.send, clock=clock))
    assert loop.turn()
    executor.fail_once["check_ranks"] = RankHung("rank 1: silent")
    with pytest.raises(RankHung, match="rank 1"):
        loop.turn()


@pytest.mark.parametrize("command", [Sleep(), CheckHealth()])
def test_a_command_that_breaks_the_group_is_answered_by_the_reason_before_the_end(command):
    transport, clock = ListTransport([[INITIALIZE], [CommandRequest(2, command)]]), ManualClock()
    executor = FakeExecutor(clock=clock)
    controller = Controller(EngineSettings(model="m", block_size=4), executor, send=transport.send, clock=clock)
    loop = EngineLoop(transport, controller)
    controller.start()
    assert loop.turn()
    executor.fail_once[command.method] = RanksDisagree("rank 1: no")
    with pytest.raises(RanksDisagree):
        loop.turn()
    assert (transport.sent[-1].error_reason, transport.sent[-1].error_message) == ("RanksDisagree", "rank 1: no")


def test_a_group_that_never_came_together_is_told_and_ends_the_process():
    transport, clock = ListTransport([[]]), ManualClock()
    executor = FakeExecutor(clock=clock)
    executor.fail_once["init_device"] = RankMissing("ranks 2, 3 did not come")
    loop = EngineLoop(transport, Controller(EngineSettings(model="m"), executor, send=transport.send, clock=clock))
    with pytest.raises(RankMissing):
        loop.run()
    assert transport.sent[-1].failure_reason == "RankMissing"


def test_what_is_known_of_ranks_is_told_before_and_after_the_profile():
    transport, clock = ListTransport([]), ManualClock()
    executor = FakeExecutor(clock=clock)
    executor.ranks = (RankStatus(0, "pod-0"), RankStatus(1, "pod-1"))
    Controller(EngineSettings(model="m"), executor, send=transport.send, clock=clock).start()
    assert [len(message.ranks) for message in transport.sent] == [0, 2, 2]
