"""The controller: which command is allowed when, what each state says, what a failure leaves behind."""

import pytest

from dormouse_worker.common.commands import (
    CheckHealth,
    InitializeCache,
    ResetMultimodalCache,
    ResetPrefixCache,
    SaveShardedState,
    Shutdown,
    Sleep,
    StartProfile,
    StopProfile,
    WakeUp,
)
from dormouse_worker.common.errors import InsufficientMemory, ModelNotFound
from dormouse_worker.common.ipc import AbortRequests, Leave, ModelInfo, State, StepOutputs, StoreCounts
from dormouse_worker.common.lifecycle import ALLOWED_IN
from dormouse_worker.engine.testing import make_add, make_report
from tests.worker.each_command import EACH_COMMAND


class TestStart:
    """Load and profile."""

    def test_it_loads_profiles_and_says_what_it_found(self, profiled):
        assert profiled.states == ["LOADING", "PROFILED"]
        assert profiled.status.report == make_report()
        assert profiled.status.model == ModelInfo(1, "float32")
        assert profiled.executor.calls == [
            "init_device",
            "load_model",
            "get_model_info",
            "convert_tokenizer",
            "determine_num_available_blocks",
        ]

    def test_a_failure_that_a_user_can_mend_is_a_state_with_its_reason(self, rank):
        rank.fail_next("load_model", ModelNotFound("/models/m: no such directory"))
        rank.controller.start()
        assert rank.states == ["LOADING", "FAILED"]
        assert (rank.status.failure_reason, rank.status.failure_message) == (
            "ModelNotFound",
            "/models/m: no such directory",
        )
        assert rank.status.report is None

    def test_too_little_memory_is_told_with_the_report(self, rank):
        rank.fail_next("determine_num_available_blocks", InsufficientMemory("too little"))
        rank.controller.start()
        assert (rank.status.failure_reason, rank.status.report) == ("InsufficientMemory", make_report())

    def test_an_unexpected_failure_is_internal(self, rank):
        rank.fail_next("init_device", OSError("no libtorch"))
        rank.controller.start()
        assert (rank.status.failure_reason, rank.status.failure_message) == ("Internal", "OSError: no libtorch")


class TestInitializeCache:
    """The agreed counts arrive."""

    def test_the_agreed_count_opens_the_worker(self, ready):
        assert ready.states == ["LOADING", "PROFILED", "INITIALIZING", "READY"]
        assert (ready.status.num_gpu_blocks, ready.status.num_cpu_blocks) == (10, 2)
        assert repr(ready.controller) == (
            "Controller(READY, Engine(Scheduler(running=0, waiting=0, "
            "BlockTables(0 sequences, BlockPool(total=10, free=10, cached=0, used=0)), "
            "SwapSpace(total=2, free=2, sequences=0))))"
        )

    def test_the_same_count_again_does_nothing(self, ready):
        assert ready.command(InitializeCache(10, 2)) == ("", "")
        assert ready.executor.calls.count("initialize_cache") == 1

    def test_another_count_allocates_anew(self, ready):
        assert ready.command(InitializeCache(8)) == ("", "")
        assert (ready.status.state, ready.status.num_gpu_blocks) == (State.READY, 8)

    def test_another_count_is_refused_while_requests_run(self, ready):
        ready.controller.handle(make_add())
        reason, message = ready.command(InitializeCache(8))
        assert (reason, "1 requests are unfinished" in message) == ("WrongState", True)
        assert ready.controller.has_work

    @pytest.mark.parametrize(
        ("args", "numbers"),
        [
            ({"num_gpu_blocks": 0}, ["0", "at least 1"]),
            ({"num_gpu_blocks": -1}, ["-1"]),
            ({"num_gpu_blocks": 10, "num_cpu_blocks": -1}, ["num_cpu_blocks", "-1"]),
            ({"num_gpu_blocks": 11}, ["11", "10"]),
            ({"num_gpu_blocks": 10, "num_cpu_blocks": 3}, ["3", "2"]),
            ({"num_gpu_blocks": 7}, ["7", "28", "32"]),
        ],
    )
    def test_counts_outside_the_limits_are_refused_with_both_numbers(self, profiled, args, numbers):
        reason, message = profiled.command(InitializeCache(**args))
        assert reason == "InvalidArgument"
        assert [number for number in numbers if number not in message] == []
        assert profiled.status.state is State.PROFILED

    def test_before_the_profile_it_is_refused(self, rank):
        assert rank.command(InitializeCache(10))[0] == "WrongState"

    def test_a_refused_allocation_goes_back_to_profiled(self, profiled):
        profiled.fail_next("initialize_cache", InsufficientMemory("no memory"))
        assert profiled.command(InitializeCache(10)) == ("InsufficientMemory", "no memory")
        assert profiled.status.state is State.PROFILED
        assert profiled.command(InitializeCache(10)) == ("", "")

    def test_an_unexpected_error_fails_the_worker(self, profiled):
        profiled.fail_next("initialize_cache", RuntimeError("boom"))
        assert profiled.command(InitializeCache(10)) == ("Internal", "RuntimeError: boom")
        assert (profiled.status.state, profiled.status.failure_message) == (State.FAILED, "RuntimeError: boom")


class TestRequests:
    """What users send, in each state."""

    def test_a_request_runs_step_by_step(self, ready):
        ready.controller.handle(make_add(max_tokens=2))
        ready.controller.step()
        ready.controller.step()
        ready.controller.step()
        outputs = [message for message in ready.sent if isinstance(message, StepOutputs)]
        assert [message.outputs[0].finish_reason for message in outputs] == [None, "length"]
        assert not ready.controller.has_work

    @pytest.mark.parametrize("fixture", ["rank", "profiled", "asleep"])
    def test_only_a_ready_worker_takes_requests(self, fixture, request):
        rank = request.getfixturevalue(fixture)
        rank.controller.handle(make_add("a"))
        state = rank.controller.state
        assert rank.sent[-1].failed == {"a": f"the worker is {state} and takes no requests"}
        rank.controller.step()
        rank.controller.rest()

    def test_a_token_that_the_model_does_not_know_ends_only_its_own_request(self, rank):
        rank.executor.vocab_size = 500
        rank.controller.start()
        assert rank.command(InitializeCache(10)) == ("", "")
        rank.controller.handle(make_add("a", max_tokens=1))
        rank.controller.handle(make_add("b", prompt=[1, 500]))
        why = "prompt_token_ids has 500; allowed are ids below the vocabulary size 500"
        assert rank.sent[-1].failed == {"b": why}
        rank.controller.step()
        assert [output.request_id for output in rank.sent[-1].outputs] == ["a"]

    def test_a_prompt_that_can_not_run_fails_alone(self, ready):
        ready.controller.handle(make_add("a"))
        ready.controller.handle(make_add("b", prompt=range(40)))
        assert list(ready.sent[-1].failed) == ["b"]
        assert ready.sent[-1].waiting == 1

    def test_an_abort_is_answered_with_the_end_of_what_was_known(self, ready):
        ready.controller.handle(make_add("a"))
        ready.controller.handle(AbortRequests(["a"]))
        assert ready.sent[-1].outputs[0].finish_reason == "abort"
        ready.controller.rest()

    def test_what_was_written_while_nothing_ran_is_told(self, ready, monkeypatch):
        counts = StoreCounts(writes=3)
        monkeypatch.setattr(ready.controller._engine.keeper, "take_counts", lambda: counts)
        ready.controller.rest()
        assert ready.sent[-1].kv_store == counts
        assert ready.sent[-1].outputs == []

    def test_requests_leave_and_stay_as_the_front_says_and_stay_after_a_sleep(self, ready, monkeypatch):
        told = []

        def leave(*, is_leaving, to_peers=False):
            told.append((is_leaving, to_peers))

        monkeypatch.setattr(ready.controller._engine.keeper, "leave", leave)
        for is_leaving, to_peers in ((True, True), (False, False), (True, False)):
            ready.controller.handle(Leave(is_leaving, to_peers))
        ready.command(Sleep(1))
        ready.command(WakeUp())
        assert told == [(True, True), (False, False), (True, False), (False, False)]

    def test_an_abort_of_nothing_known_is_silent(self, ready):
        before = len(ready.sent)
        ready.controller.handle(AbortRequests(["a"]))
        assert len(ready.sent) == before

    def test_an_abort_without_an_engine_is_silent(self, rank):
        rank.controller.handle(AbortRequests(["a"]))
        assert rank.sent == []


class TestOtherCommands:
    """Health, end and nonsense."""

    def test_health_is_asked_of_the_worker(self, ready):
        assert ready.command(CheckHealth()) == ("", "")
        ready.fail_next("check_health", RuntimeError("ill"))
        assert ready.command(CheckHealth()) == ("Internal", "RuntimeError: ill")
        assert ready.status.state is State.READY

    def test_prefixes_are_forgotten_in_every_state(self, profiled):
        assert profiled.command(ResetPrefixCache()) == ("", "")
        assert profiled.command(InitializeCache(10)) == ("", "")
        for name in "ab":
            profiled.controller.handle(make_add(name, range(9), max_tokens=1))
            profiled.controller.step()
            assert profiled.command(ResetPrefixCache()) == ("", "")
        hits = [message.prefix_hits for message in profiled.sent if isinstance(message, StepOutputs)]
        assert hits == [0, 0]

    def test_images_are_forgotten_in_every_state(self, rank):
        rank.executor.report = make_report(image_rows=8)
        assert rank.command(ResetMultimodalCache()) == ("", "")
        rank.controller.start()
        assert rank.command(ResetMultimodalCache()) == ("", "")
        for command in (InitializeCache(10), Sleep(1), WakeUp()):
            assert rank.command(command) == ("", "")
            assert rank.command(ResetMultimodalCache()) == ("", "")
        assert rank.executor.calls.count("forget_images") == 3

    def test_weights_are_saved_by_a_worker_that_has_them(self, ready):
        assert ready.command(SaveShardedState("/shards")) == ("", "")
        assert ready.executor.calls[-1] == "save_sharded_state"

    def test_a_worker_that_sleeps_saves_no_weights(self, asleep):
        assert asleep.command(SaveShardedState("/shards")) == (
            "WrongState",
            "SaveShardedState needs the state READY; the worker is asleep at level 2",
        )

    @pytest.mark.parametrize("fixture", ["rank", "profiled", "ready", "asleep", "failed"])
    @pytest.mark.parametrize("command", EACH_COMMAND, ids=lambda command: command.method)
    def test_every_command_is_refused_just_where_the_table_says_so(self, fixture, command, request):
        rank = request.getfixturevalue(fixture)
        is_allowed = rank.controller.state in ALLOWED_IN[type(command).__name__]
        assert rank.command(command)[0] == ("" if is_allowed else "WrongState")

    def test_shutdown_aborts_frees_and_is_answered(self, ready):
        ready.controller.handle(make_add("a"))
        assert ready.command(Shutdown()) == ("", "")
        assert ready.sent[-2].outputs[0].finish_reason == "abort"
        assert (ready.controller.is_shut_down, ready.executor.calls[-1]) == (True, "shutdown")

    @pytest.mark.parametrize("fixture", ["rank", "ready"])
    def test_shutdown_of_an_idle_worker_needs_no_abort(self, fixture, request):
        rank = request.getfixturevalue(fixture)
        assert rank.command(Shutdown()) == ("", "")
        assert rank.controller.is_shut_down


class TestProfile:
    """The commands go through, and the trace's path comes back."""

    def test_the_path_is_the_answers_value(self, ready):
        assert ready.command(StartProfile("/traces")) == ("", "")
        assert ready.command(StopProfile()) == ("", "")
        assert ready.sent[-1].value == "/traces/rank0"

    def test_a_step_that_raises_does_not_end_it(self, ready):
        ready.command(StartProfile("/traces"))
        ready.fail_next("execute_model", RuntimeError("device assert"))
        ready.controller.handle(make_add())
        ready.controller.step()
        assert ready.executor.calls[-1] == "execute_model"
        assert ready.command(StopProfile()) == ("", "")
        assert "stop_profile" not in ready.executor.calls[:-1]
