"""The controller asleep: the ways there and back, and what a failure on the way leaves behind."""

import pytest

from dormouse_worker.common.commands import AbortAll, PrepareWakeUp, Sleep, WakeUp
from dormouse_worker.common.errors import GoldenTokensDiffer, InsufficientMemory
from dormouse_worker.common.ipc import State, StepOutputs
from dormouse_worker.engine.testing import make_add


class TestSleep:
    """Down to level 2."""

    def test_it_says_what_it_freed_and_how_long_it_took(self, asleep):
        status = asleep.status
        assert (status.state, status.sleep_level, status.last_sleep_seconds) == (State.ASLEEP, 2, 2.0)
        assert (status.freed_bytes, status.residual_bytes, status.num_gpu_blocks) == (800, 100, 0)

    def test_before_the_cache_is_there_it_is_refused(self, profiled):
        assert profiled.command(Sleep())[0] == "WrongState"

    def test_running_requests_refuse_it(self, ready):
        ready.controller.handle(make_add())
        assert ready.command(Sleep())[0] == "WrongState"
        assert ready.status.state is State.READY

    def test_they_can_be_ended_first(self, ready):
        ready.controller.handle(make_add("a"))
        assert ready.command(AbortAll()) == ("", "")
        assert ready.command(Sleep()) == ("", "")
        (aborted,) = [
            output for message in ready.sent if isinstance(message, StepOutputs) for output in message.outputs
        ]
        assert (aborted.request_id, aborted.finish_reason) == ("a", "abort")

    def test_a_refusal_of_the_worker_leaves_it_awake(self, ready):
        ready.fail_next("sleep", InsufficientMemory("no host memory"))
        assert ready.command(Sleep(1)) == ("InsufficientMemory", "no host memory")
        assert ready.status.state is State.READY
        ready.controller.handle(make_add())
        assert ready.controller.has_work

    def test_an_error_inside_fails_the_worker(self, ready):
        ready.fail_next("sleep", RuntimeError("boom"))
        assert ready.command(Sleep()) == ("Internal", "RuntimeError: boom")
        assert ready.status.state is State.FAILED


class TestWakeUp:
    """And back."""

    def test_what_a_prepared_wake_lacks_stands_in_the_answer(self, asleep):
        asleep.executor.missing_bytes = 512
        assert asleep.command(PrepareWakeUp()) == ("", "")
        assert asleep.sent[-1].value == 512
        assert asleep.status.state is State.ASLEEP

    def test_a_part_alone_does_not_open(self, asleep):
        assert asleep.command(WakeUp(("weights",))) == ("", "")
        assert asleep.status.state is State.ASLEEP
        assert asleep.command(WakeUp()) == ("", "")
        assert asleep.status.state is State.READY

    def test_a_prepared_wake_of_one_that_loads_is_refused(self, profiled):
        assert profiled.command(PrepareWakeUp())[0] == "WrongState"

    def test_it_opens_with_the_agreed_count_and_says_how_long_it_took(self, asleep):
        assert asleep.command(WakeUp()) == ("", "")
        status = asleep.status
        assert asleep.states[-2:] == ["WAKING", "READY"]
        assert (status.num_gpu_blocks, status.num_cpu_blocks, status.sleep_level) == (10, 2, 0)
        assert (status.last_wake_seconds, status.last_sleep_seconds, status.residual_bytes) == (3.0, 2.0, 0)
        asleep.controller.handle(make_add())
        assert asleep.controller.has_work

    def test_who_computes_is_told_anew_as_a_draft_model_may_not_come_back(self, drafting):
        drafting.executor.vocab_size = 9
        assert drafting.command(WakeUp()) == ("", "")
        assert drafting.status.model.vocab_size == 9

    def test_awake_already_is_done(self, ready):
        assert ready.command(WakeUp()) == ("", "")
        assert "wake_up" not in ready.executor.calls

    def test_before_any_sleep_it_is_refused(self, profiled):
        assert profiled.command(WakeUp())[0] == "WrongState"

    def test_a_wake_that_does_not_fit_leaves_it_asleep_and_can_be_tried_again(self, asleep):
        asleep.fail_next("wake_up", InsufficientMemory("no memory"))
        assert asleep.command(WakeUp()) == ("InsufficientMemory", "no memory")
        assert asleep.status.state is State.ASLEEP
        assert asleep.command(WakeUp()) == ("", "")

    @pytest.mark.parametrize(
        ("error", "reason"), [(GoldenTokensDiffer("other"), "GoldenTokensDiffer"), (OSError("disk"), "Internal")]
    )
    def test_wrong_tokens_or_a_surprise_fail_the_worker_and_no_request_is_served(self, asleep, error, reason):
        asleep.fail_next("wake_up", error)
        assert asleep.command(WakeUp())[0] == reason
        assert (asleep.status.state, asleep.status.failure_reason) == (State.FAILED, reason)
        asleep.controller.handle(make_add("a"))
        assert "a" in asleep.sent[-1].failed
