"""Another engine in the place of one that serves: it takes over, or everything is as before."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from dormouse_api.v1 import inference_pb2
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.exit_codes import EXIT_GPU_UNHEALTHY
from dormouse_worker.front.app import Seams
from dormouse_worker.front.testing import VirtualTime, write_model
from dormouse_worker.ipc import Command, State
from dormouse_worker.testing import Script

Code = grpc.StatusCode
ASLEEP, READY, PROFILED = pb.WORKER_STATE_ASLEEP, pb.WORKER_STATE_READY, pb.WORKER_STATE_PROFILED
OTHER_TOKENS = (11, 12)
OTHER_VOCAB_SIZE = 100


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another model: fewer tokens, another template."""
    path = write_model(tmp_path_factory.mktemp("models") / "other", template="other: {{ messages[0].content }}")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "vocab_size": OTHER_VOCAB_SIZE}))
    return path


@pytest.fixture
def open_with(open_house):
    """Start a front whose other engine follows this script."""

    def opened(script=None, **kwargs):
        return open_house(scripts={"other": script or Script(tokens=OTHER_TOKENS)}, **kwargs)

    return opened


def flags(path, *more):
    """Return the command line of a worker like the test's, with another model."""
    own = ("--load-format=dummy", "--host=127.0.0.1", "--port=0", "--control-port=0", "--metrics-port=0")
    return [f"--model={path}", "--served-model-name=tiny", "--max-engine-restarts=0", *own, *more]


def swap(house, path, *more, **fields):
    """Begin a swap to the model."""
    fields = {"settings_digest": "other digest", "arguments": flags(path, *more), **fields}
    return asyncio.create_task(house.operate("SwapEngine", **fields))


async def refused(house, path, *more, **fields):
    """Return the error of a swap that fails."""
    return await house.refusal(swap(house, path, *more, **fields))


def told(engine):
    """Return the commands that reached an engine."""
    return [(m.method, m.args) for m in engine.engine.received if isinstance(m, Command)]


async def tokens(house, prompt=(1, 2, 3), **fields):
    """Return what a request gets."""
    return [t for m in await house.collect(list(prompt), max_tokens=4, **fields) for t in m.token_ids]


async def test_the_other_engine_takes_over_and_the_front_follows_its_settings(open_with, other):
    async with open_with() as house:
        chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="hi")])
        status = await swap(house, other, "--served-model-name=other", settings_digest="new")
        assert (status.state, status.settings_digest, status.swapping_to) == (PROFILED, "new", "")
        assert (status.pod_uid, status.report.num_gpu_blocks, status.num_gpu_blocks) == ("pod-uid", 100, 0)
        assert await house.engines[0].wait() == 0
        assert await house.inference_health() == "NOT_SERVING"
        assert (await house.make_ready()).state == READY
        assert await tokens(house, model="other") == [11, 12, 11, 12]
        outside = await house.refusal(house.generate([OTHER_VOCAB_SIZE]).read())
        assert (outside.code(), str(OTHER_VOCAB_SIZE) in outside.details()) == (Code.INVALID_ARGUMENT, True)
        rendered = await house.inference.Tokenize(inference_pb2.TokenizeRequest(chat=chat))
        assert rendered.rendered_text == "other: hi"


async def test_names_metrics_and_digests_are_those_of_the_new_settings(open_with, other):
    async with open_with() as house:
        before = await house.operate("GetStatus")
        arguments = [flag.replace("=tiny", "=renamed") for flag in flags(other)]
        status = await swap(house, other, arguments=arguments)
        assert status.model_digest != before.model_digest
        await house.make_ready()
        await house.collect([1])
        unknown = await house.refusal(house.generate([1], model="tiny").read())
        assert (unknown.code(), "renamed" in unknown.details()) == (Code.NOT_FOUND, True)
        metrics = (await house.http("/metrics"))[1]
        assert 'vllm:request_success_total{finished_reason="length",model_name="renamed"} 1.0' in metrics
        assert 'model_name="tiny"' not in metrics


async def test_the_old_engine_sleeps_while_the_new_one_loads_and_no_other_command_gets_through(open_with, other):
    async with open_with(Script(tokens=OTHER_TOKENS, hangs_at="load")) as house:
        swapping = swap(house, other)
        await house.until_spawned(2)
        assert told(house.engines[0])[-1] == ("sleep", {"level": 2, "tags": []})
        status = await house.operate("GetStatus")
        assert (status.state, status.settings_digest, status.swapping_to) == (ASLEEP, "digest", "other digest")
        assert await house.inference_health() == "NOT_SERVING"
        assert ((await house.http("/healthz"))[0], (await house.http("/readyz"))[0]) == (200, 503)
        calls = {"WakeUp": {}, "Sleep": {"level": 2}, "PrepareSleep": {"level": 2}, "PrepareWakeUp": {}}
        for method, fields in {**calls, "ResetPrefixCache": {}}.items():
            error = await house.refusal(house.operate(method, **fields))
            assert error.code() is Code.FAILED_PRECONDITION, method
            assert "a swap to other digest is under way" in error.details()
        error = await refused(house, other, settings_digest="a third digest")
        assert (error.code(), "a swap to other digest" in error.details()) == (Code.FAILED_PRECONDITION, True)
        again = swap(house, other)
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
        error = await refused(house, other, timeout_seconds=0.05)
        assert error.code() is Code.FAILED_PRECONDITION
        assert words in error.details()
        assert error.details().endswith("; the engine before is ready again")
        status = await house.operate("GetStatus")
        assert (status.state, status.settings_digest, status.swapping_to) == (READY, "digest", "")
        assert await house.engines[1].wait() == -9
        assert (await house.inference_health(), await tokens(house)) == ("SERVING", [1, 2, 3, 1])
        assert [method for method, _ in told(house.engines[0])][-2:] == ["sleep", "wake_up"]


async def test_a_new_engine_that_dies_while_it_loads_takes_nobody_with_it(open_with, other):
    async with open_with(Script(hangs_at="load")) as house:
        swapping = swap(house, other)
        await house.until_spawned(2)
        house.engine.die(-9, "Killed")
        error = await house.refusal(swapping)
        assert "killed by signal 9; its last words: Killed (EngineDied); the engine before is ready" in error.details()
        assert await tokens(house) == [1, 2, 3, 1]
        assert not house.running.done()


async def test_after_a_swap_that_failed_another_one_may_succeed(open_with, other):
    async with open_with(Script(hangs_at="load", tokens=OTHER_TOKENS)) as house:
        await refused(house, other, timeout_seconds=0.05)
        swapping = swap(house, other)
        await house.until_spawned(3)
        house.engine.loaded.set()
        assert (await swapping).state == PROFILED
        await house.make_ready()
        assert await tokens(house) == [11, 12, 11, 12]


async def test_what_was_asleep_before_is_asleep_after_a_swap_that_failed(open_with, other):
    async with open_with(Script(failure=("ModelInvalid", "no"))) as house:
        await house.operate("Sleep", level=1)
        error = await refused(house, other)
        assert error.details().endswith("the engine before is asleep again")
        assert (await house.operate("GetStatus")).state == ASLEEP
        assert "wake_up" not in [method for method, _ in told(house.engines[0])]
        assert (await house.operate("WakeUp")).state == READY


async def test_a_worker_that_was_drained_and_one_that_prepared_a_sleep_can_swap(open_with, other):
    for method, fields in {"Drain": {}, "PrepareSleep": {"level": 2}}.items():
        async with open_with() as house:
            await house.operate(method, **fields)
            assert (await swap(house, other)).state == PROFILED
            await house.make_ready()


async def test_an_old_engine_that_can_not_sleep_serves_on(open_house, other):
    refusal = ("InsufficientMemory", "the host is full")
    async with open_house(Script(refusals={"sleep": refusal}), engine={"device": "cuda"}) as house:
        error = await refused(house, other)
        assert (error.code(), "the host is full" in error.details()) == (Code.RESOURCE_EXHAUSTED, True)
        levels = [args["level"] for method, args in told(house.engines[0]) if method == "sleep"]
        assert levels == [1, 2], "what does not fit into host memory is dropped"
        assert len(house.engines) == 1
        assert await tokens(house) == [1, 2, 3, 1]


async def test_a_device_with_memory_of_its_own_keeps_the_old_weights_in_host_memory(open_with, other):
    async with open_with(engine={"device": "cuda"}) as house:
        await swap(house, other)
        assert [args["level"] for method, args in told(house.engines[0]) if method == "sleep"] == [1]


async def test_running_requests_refuse_a_swap_and_go_on(open_with, other):
    async with open_with() as house:
        call = await house.begin_request()
        error = await refused(house, other)
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
        error = await refused(house, other, flag)
        assert (error.code(), words in error.details()) == (Code.INVALID_ARGUMENT, True), error.details()
        assert (await house.operate("GetStatus")).state == READY
        assert [method for method, _ in told(house.engine)] == ["initialize_cache"]


async def test_other_bad_orders_are_refused_and_nothing_is_done(open_with, other, tmp_path):
    async with open_with() as house:
        error = await refused(house, other, timeout_seconds=float("nan"))
        assert (error.code(), "timeout_seconds is nan" in error.details()) == (Code.INVALID_ARGUMENT, True)
        error = await refused(house, other, arguments=[])
        assert (error.code(), "--model" in error.details()) == (Code.INVALID_ARGUMENT, True)
        error = await refused(house, tmp_path / "nowhere")
        assert error.code() is Code.FAILED_PRECONDITION
        assert "(ModelNotFound); nothing was changed" in error.details()
        await house.operate("Drain", epoch=5)
        error = await refused(house, other, epoch=4)
        assert (error.code(), "epoch is 4" in error.details()) == (Code.FAILED_PRECONDITION, True)
        assert [method for method, _ in told(house.engine)] == ["initialize_cache"]


async def test_only_what_serves_or_sleeps_can_be_swapped(open_with, other):
    async with open_with(ready=False) as house:
        await house.until_state(State.PROFILED)
        error = await refused(house, other)
        assert error.code() is Code.FAILED_PRECONDITION
        assert "SwapEngine needs the state READY or DRAINING or ASLEEP; the worker is profiled" in error.details()


async def test_a_swap_does_not_begin_while_another_command_runs(open_house, other):
    async with open_house(Script(hangs_at="reset_prefix_cache")) as house:
        hanging = asyncio.create_task(house.operate("ResetPrefixCache"))
        await house.engine.until_received(lambda m: isinstance(m, Command) and m.method == "reset_prefix_cache")
        error = await refused(house, other)
        assert error.code() is Code.FAILED_PRECONDITION
        assert "another command is under way" in error.details()
        hanging.cancel()


async def test_the_settings_that_are_served_already_are_a_success_and_nothing_is_done(open_with, other, model_path):
    async with open_with() as house:
        assert (await swap(house, model_path, settings_digest="digest")).state == READY
        assert [method for method, _ in told(house.engine)] == ["initialize_cache"]
        await swap(house, other)
        await house.make_ready()
        assert (await swap(house, other)).state == READY
        assert len(house.engines) == 2


async def test_the_old_settings_during_a_swap_take_it_back_at_once(open_with, other, model_path):
    async with open_with(Script(hangs_at="load")) as house:
        swapping = swap(house, other)
        await house.until_spawned(2)
        status = await swap(house, model_path, settings_digest="digest")
        assert (status.state, status.settings_digest) == (READY, "digest")
        assert "the settings before were asked for again (Recalled)" in (await house.refusal(swapping)).details()


async def test_a_caller_that_hangs_up_does_not_stop_the_swap(open_with, other):
    async with open_with(Script(hangs_at="load", tokens=OTHER_TOKENS)) as house:
        swapping = swap(house, other)
        await house.until_spawned(2)
        swapping.cancel()
        house.engine.loaded.set()
        await house.until_state(State.PROFILED)
        await house.front.worker.changes.until(lambda: not house.front.worker.swapping_to)
        await house.make_ready()
        assert await tokens(house) == [11, 12, 11, 12]


async def test_the_end_of_the_worker_during_a_swap_ends_both_engines(open_with, other):
    async with open_with(Script(hangs_at="load")) as house:
        swapping = swap(house, other)
        await house.until_spawned(2)
        house.stop.set()
        await house.refusal(swapping)
        assert await house.running == 0
        assert [await engine.wait() for engine in house.engines] == [0, -9]
        assert "wake_up" not in [method for method, _ in told(house.engines[0])]


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture
def keep(open_with, time):
    """Start a front in virtual time whose engines may be restarted."""

    def opened(script, **kwargs):
        return open_with(script, seams=Seams(clock=time, sleep=time.sleep), max_engine_restarts=3, **kwargs)

    return opened


RESTARTS = "--max-engine-restarts=3"


async def old_engine_dies(house, exit_code=-9):
    lost = asyncio.create_task(house.until_state(State.STARTING))
    house.engines[0].die(exit_code, "Killed")
    await lost


async def test_an_old_engine_that_died_asleep_is_started_again_only_if_the_swap_fails(keep, time, other):
    async with keep(Script(hangs_at="load")) as house:
        swapping = swap(house, other, RESTARTS)
        await house.until_spawned(2)
        await old_engine_dies(house)
        assert (await house.http("/healthz"))[0] == 200
        assert not time.is_napping(1.0), "nobody waits to start it beside the new one"
        house.engine.die(-9)
        assert "the engine before died meanwhile and is started again" in (await house.refusal(swapping)).details()
        await time.until_nap(1.0)
        time.advance(1.0)
        assert (await house.make_ready()).settings_digest == "digest"
        assert await tokens(house) == [1, 2, 3, 1]
        assert len(house.engines) == 3


async def test_an_old_engine_that_died_asleep_does_not_hinder_the_new_one(keep, time, other):
    async with keep(Script(hangs_at="load", tokens=OTHER_TOKENS)) as house:
        swapping = swap(house, other, RESTARTS)
        await house.until_spawned(2)
        await old_engine_dies(house)
        house.engine.loaded.set()
        assert (await swapping).state == PROFILED
        await house.make_ready()
        assert await tokens(house) == [11, 12, 11, 12]
        assert (len(house.engines), time.is_napping(1.0)) == (2, False)


async def test_a_swapped_engine_that_dies_is_started_again_with_its_own_settings(keep, time, other):
    async with keep(Script(tokens=OTHER_TOKENS)) as house:
        await swap(house, other, RESTARTS)
        await house.make_ready()
        house.engine.die(-9)
        await time.until_nap(1.0)
        time.advance(1.0)
        assert (await house.make_ready()).settings_digest == "other digest"
        assert await tokens(house) == [11, 12, 11, 12]


async def test_an_engine_whose_gpu_is_ill_is_not_swapped_for_another_one_on_it(keep, other):
    async with keep(Script(hangs_at="load")) as house:
        swapping = swap(house, other, RESTARTS)
        await house.until_spawned(2)
        house.engines[0].die(EXIT_GPU_UNHEALTHY, "Xid 79")
        await house.until_state(State.FAILED)
        house.engine.loaded.set()
        assert "(GPUUnhealthy)" in (await house.refusal(swapping)).details()
        assert (await house.operate("GetStatus")).failure.reason == "GPUUnhealthy"


async def test_an_old_engine_that_can_not_wake_is_told_of_beside_the_reason(open_house, other):
    old = Script(refusals={"wake_up": ("InsufficientMemory", "a neighbour came")})
    async with open_house(old, scripts={"other": Script(failure=("ModelInvalid", "broken"))}) as house:
        error = await refused(house, other)
        assert "broken (ModelInvalid); the engine before could not be woken" in error.details()
        assert "a neighbour came" in error.details()
        assert (await house.operate("GetStatus")).state == ASLEEP
