"""Another engine in the place of one that serves: it takes over, or everything is as before."""

from __future__ import annotations

import asyncio
import shutil

import grpc
import pytest

from dormouse_api.v1 import inference_pb2
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.common.commands import ResetPrefixCache, Sleep, WakeUp
from dormouse_worker.common.ipc import CommandRequest, State
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode
ASLEEP, READY, PROFILED = pb.WORKER_STATE_ASLEEP, pb.WORKER_STATE_READY, pb.WORKER_STATE_PROFILED
VOCAB_SIZE = 100  # of the other model


def told(engine):
    """Return the commands that reached an engine."""
    return engine.engine.commands


async def test_the_other_engine_takes_over_and_the_front_follows_its_settings(open_with, other):
    async with open_with() as house:
        chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="hi")])
        status = await house.swap(other, "--served-model-name=other", settings_digest="new")
        assert (status.state, status.settings_digest, status.swapping_to) == (PROFILED, "new", "")
        assert (status.pod_uid, status.report.num_gpu_blocks, status.num_gpu_blocks) == ("pod-uid", 100, 0)
        assert await house.engines[0].wait() == 0
        assert await house.inference_health() == "NOT_SERVING"
        assert (await house.make_ready()).state == READY
        assert await house.tokens(model="other") == [11, 12, 11, 12]
        outside = await house.refusal(house.generate([VOCAB_SIZE]).read())
        assert (outside.code(), str(VOCAB_SIZE) in outside.details()) == (Code.INVALID_ARGUMENT, True)
        rendered = await house.inference.Tokenize(inference_pb2.TokenizeRequest(chat=chat))
        assert rendered.rendered_text == "other:hi"


async def test_names_metrics_and_digests_are_those_of_the_new_settings(open_with, other):
    async with open_with() as house:
        before = await house.operate("GetStatus")
        status = await house.swap(other, name="renamed")
        assert status.model_digest != before.model_digest
        await house.make_ready()
        await house.collect([1])
        unknown = await house.refusal(house.generate([1], model="tiny").read())
        assert (unknown.code(), "renamed" in unknown.details()) == (Code.NOT_FOUND, True)
        metrics = (await house.http("/metrics"))[1]
        assert 'vllm:request_success_total{finished_reason="length",model_name="renamed"} 1.0' in metrics
        assert 'model_name="tiny"' not in metrics


async def test_the_old_engine_sleeps_while_the_new_one_loads_and_no_other_command_gets_through(open_with, other):
    async with open_with(Script(hangs_at="load")) as house:
        swapping = house.swap(other)
        await house.until_spawned(2)
        assert told(house.engines[0])[-1] == Sleep(2)
        status = await house.operate("GetStatus")
        assert (status.state, status.settings_digest, status.swapping_to) == (ASLEEP, "digest", "other digest")
        assert await house.inference_health() == "NOT_SERVING"
        assert ((await house.http("/healthz"))[0], (await house.http("/readyz"))[0]) == (200, 200)  # the gate is closed
        calls = {"WakeUp": {}, "Sleep": {"level": 2}, "PrepareSleep": {"level": 2}, "PrepareWakeUp": {}}
        for method, fields in {**calls, "ResetPrefixCache": {}}.items():
            error = await house.refusal(house.operate(method, **fields))
            assert error.code() is Code.FAILED_PRECONDITION, method
            assert "a swap to other digest is under way" in error.details()
        error = await house.refused_swap(other, settings_digest="a third digest")
        assert (error.code(), "a swap to other digest" in error.details()) == (Code.FAILED_PRECONDITION, True)
        again = house.swap(other)
        house.engine.loaded.set()
        assert [(await call).state for call in (swapping, again)] == [PROFILED, PROFILED]
        assert len(house.engines) == 2


FAILURES = {
    "it says why": (Script(failure=("InsufficientMemory", "2 GiB are missing")), "2 GiB are missing (InsufficientM"),
    "it is too late": (Script(hangs_at="load"), "after 0.05 s (timeout_seconds) (ProgressDeadlineExceeded)"),
}


@pytest.mark.parametrize(("script", "words"), FAILURES.values(), ids=FAILURES)
async def test_if_the_new_engine_fails_the_old_one_serves_again_and_the_caller_learns_why(
    open_with, other, script, words
):
    async with open_with(script) as house:
        error = await house.refused_swap(other, timeout_seconds=0.05)
        assert error.code() is Code.FAILED_PRECONDITION
        assert words in error.details()
        assert error.details().endswith("; the engine before is ready again")
        status = await house.operate("GetStatus")
        assert (status.state, status.settings_digest, status.swapping_to) == (READY, "digest", "")
        assert await house.engines[1].wait() == -9
        assert (await house.inference_health(), await house.tokens()) == ("SERVING", [1, 2, 3, 1])
        assert told(house.engines[0])[-2:] == [Sleep(2), WakeUp()]


async def test_a_new_engine_that_dies_while_it_loads_takes_nobody_with_it(open_with, other):
    async with open_with(Script(hangs_at="load")) as house:
        swapping = house.swap(other)
        await house.until_spawned(2)
        house.engine.die(-9, "Killed")
        error = await house.refusal(swapping)
        assert "killed by signal 9; its last words: Killed (EngineDied); the engine before is ready" in error.details()
        assert await house.tokens() == [1, 2, 3, 1]
        assert not house.running.done()


async def test_after_a_swap_that_failed_another_one_may_succeed(open_with, other):
    async with open_with(Script(hangs_at="load", tokens=(11, 12))) as house:
        await house.refused_swap(other, timeout_seconds=0.05)
        swapping = house.swap(other)
        await house.until_spawned(3)
        house.engine.loaded.set()
        assert (await swapping).state == PROFILED
        await house.make_ready()
        assert await house.tokens() == [11, 12, 11, 12]


async def test_what_was_asleep_before_is_asleep_after_a_swap_that_failed(open_with, other):
    async with open_with(Script(failure=("ModelInvalid", "no"))) as house:
        await house.operate("Sleep", level=1)
        error = await house.refused_swap(other)
        assert error.details().endswith("the engine before is asleep again")
        assert (await house.operate("GetStatus")).state == ASLEEP
        assert WakeUp() not in told(house.engines[0])
        assert (await house.operate("WakeUp")).state == READY


async def test_a_worker_that_was_drained_and_one_that_prepared_a_sleep_can_swap(open_with, other):
    for method, fields in {"Drain": {}, "PrepareSleep": {"level": 2}}.items():
        async with open_with() as house:
            await house.operate(method, **fields)
            assert (await house.swap(other)).state == PROFILED
            await house.make_ready()


async def test_an_old_engine_that_can_not_sleep_serves_on(open_house, other):
    refusal = ("InsufficientMemory", "the host is full")
    async with open_house(Script(refusals={"sleep": refusal}), engine={"device": "cuda"}) as house:
        error = await house.refused_swap(other)
        assert (error.code(), "the host is full" in error.details()) == (Code.RESOURCE_EXHAUSTED, True)
        assert told(house.engines[0])[1:] == [Sleep(1), Sleep(2)], "what does not fit into host memory is dropped"
        assert len(house.engines) == 1
        assert await house.tokens() == [1, 2, 3, 1]
        await house.operate("PrepareSleep", level=2)
        await house.refused_swap(other)
        assert await house.tokens() == [1, 2, 3, 1], "who took a preparation over opens again"


async def test_a_device_with_memory_of_its_own_keeps_the_old_weights_in_host_memory(open_with, other):
    async with open_with(engine={"device": "cuda"}) as house:
        await house.swap(other)
        assert told(house.engines[0])[1:] == [Sleep(1)]


async def test_running_requests_refuse_a_swap_and_go_on(open_with, other):
    async with open_with() as house:
        call = await house.begin_request()
        error = await house.refused_swap(other)
        assert error.code() is Code.FAILED_PRECONDITION
        assert "1 requests do: Drain first" in error.details()
        house.engine.is_paused = False
        for _ in range(3):
            house.engine.step()
        assert [t async for m in call for t in m.token_ids] == [1, 2, 3]
        assert len(house.engines) == 1


WRONG_FLAGS = {
    "--max-num-seqs=0": "argument --max-num-seqs: '0' is not an integer of at least 1",
    "--nonsense=1": "unrecognized arguments: --nonsense=1",
    "--help": "unrecognized arguments: --help",
    "--default-timeout-seconds=9999": "argument --default-timeout-seconds: 9999 is above --max-timeout-seconds",
    "--control-port=7": "--control-port is 7, but this process runs with 0; only a new pod can change it",
}


@pytest.mark.parametrize(("flag", "words"), WRONG_FLAGS.items(), ids=WRONG_FLAGS)
async def test_a_wrong_flag_and_one_of_the_process_are_refused_by_name_before_anything_happens(
    open_with, other, flag, words
):
    async with open_with() as house:
        error = await house.refused_swap(other, flag)
        assert (error.code(), words in error.details()) == (Code.INVALID_ARGUMENT, True), error.details()
        assert (await house.operate("GetStatus")).state == READY
        assert [command.method for command in told(house.engine)] == ["initialize_cache"]


async def test_other_bad_orders_are_refused_and_nothing_is_done(open_with, other, tmp_path):
    async with open_with() as house:
        error = await house.refused_swap(other, timeout_seconds=float("nan"))
        assert (error.code(), "timeout_seconds is nan" in error.details()) == (Code.INVALID_ARGUMENT, True)
        error = await house.refused_swap(other, arguments=[])
        assert (error.code(), "--model" in error.details()) == (Code.INVALID_ARGUMENT, True)
        error = await house.refused_swap(tmp_path / "nowhere")
        assert error.code() is Code.FAILED_PRECONDITION
        assert "(ModelNotFound); nothing was changed" in error.details()
        await house.operate("Drain", epoch=5)
        error = await house.refused_swap(other, epoch=4)
        assert (error.code(), "epoch is 4" in error.details()) == (Code.FAILED_PRECONDITION, True)
        assert [command.method for command in told(house.engine)] == ["initialize_cache"]


async def test_only_what_serves_or_sleeps_can_be_swapped(open_with, other):
    async with open_with(ready=False) as house:
        await house.until_state(State.PROFILED)
        error = await house.refused_swap(other)
        assert error.code() is Code.FAILED_PRECONDITION
        assert "SwapEngine needs the state READY or DRAINING or ASLEEP; the worker is profiled" in error.details()


async def test_a_swap_does_not_begin_while_another_command_runs(open_house, other):
    async with open_house(Script(hangs_at="reset_prefix_cache")) as house:
        hanging = asyncio.create_task(house.operate("ResetPrefixCache"))
        await house.engine.until_received(
            lambda m: isinstance(m, CommandRequest) and isinstance(m.command, ResetPrefixCache)
        )
        error = await house.refused_swap(other)
        assert error.code() is Code.FAILED_PRECONDITION
        assert "another command is under way" in error.details()
        hanging.cancel()


async def test_the_settings_that_are_served_already_are_a_success_and_nothing_is_done(open_with, other, model_path):
    async with open_with() as house:
        assert (await house.swap(model_path, settings_digest="digest")).state == READY
        assert [command.method for command in told(house.engine)] == ["initialize_cache"]
        await house.swap(other)
        await house.make_ready()
        assert (await house.swap(other)).state == READY
        assert len(house.engines) == 2


async def test_the_old_settings_during_a_swap_take_it_back_at_once(open_with, other, model_path):
    async with open_with(Script(hangs_at="load")) as house:
        swapping = house.swap(other)
        await house.until_spawned(2)
        status = await house.swap(model_path, settings_digest="digest")
        assert (status.state, status.settings_digest) == (READY, "digest")
        assert "the settings before were asked for again (Recalled)" in (await house.refusal(swapping)).details()


async def test_watchers_see_the_old_engine_sleep_and_the_new_one_profiled_and_nothing_between(open_with, other):
    async with open_with() as house:
        worker = house.front.worker

        async def until_closed():
            return [state async for state in worker.changes.stream(lambda: worker.board.state, min_interval_s=0.0)]

        watching = asyncio.create_task(until_closed())
        await house.swap(other)
        await house.make_ready()
        worker.changes.close()
        seen = await watching
        during = seen[seen.index(State.ASLEEP) : seen.index(State.PROFILED) + 1]
        assert during == [State.ASLEEP, State.PROFILED]


async def test_the_tokenizer_that_the_new_engine_made_is_there_before_anybody_is_told(
    open_house, other, model_path, tmp_path
):
    bare = shutil.copytree(other, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer.json"))
    made = Script(tokenizer_path=str(model_path / "tokenizer.json"))
    async with open_house(scripts={"bare": made}) as house:
        await house.swap(bare)
        assert len((await house.tokenize("hello")).token_ids) == 5
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{")
    async with open_house(scripts={"bare": Script(tokenizer_path=str(broken))}) as house:
        error = await house.refused_swap(bare)
        assert "(ModelInvalid); the engine before is ready again" in error.details()
        assert await house.tokens() == [1, 2, 3, 1]
