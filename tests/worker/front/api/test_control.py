"""WorkerControl: agreement, draining, sleep and wake, fencing, and who may call it."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import grpc
import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import STRANGE_SEED, proof
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc
from dormouse_worker.common.commands import ResetMultimodalCache, ResetPrefixCache
from dormouse_worker.common.ipc import State
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode
ASLEEP, READY, DRAINING = pb.WORKER_STATE_ASLEEP, pb.WORKER_STATE_READY, pb.WORKER_STATE_DRAINING


def methods(house):
    """Return the commands that reached the engine."""
    return [command.method for command in house.engine.engine.commands]


async def test_the_report_is_awaited_while_the_model_loads(open_house):
    async with open_house(ready=False, loaded=False) as house:
        waiting = asyncio.create_task(house.operate("DetermineNumAvailableBlocks"))
        await house.until_state(State.LOADING)
        impatient = await house.refusal(house.operate("DetermineNumAvailableBlocks", timeout=0.05))
        assert impatient.code() is Code.DEADLINE_EXCEEDED
        assert not waiting.done()
        house.engine.loaded.set()
        assert (await waiting).num_gpu_blocks == 100


async def test_a_failed_load_is_told_with_its_reason_and_the_front_stays_alive(open_house):
    script = Script(failure=("InsufficientMemory", "4 GiB are needed, 2 are there"))
    async with open_house(script, ready=False) as house:
        refused = await house.refusal(house.operate("DetermineNumAvailableBlocks"))
        assert (refused.code(), refused.details()) == (
            Code.FAILED_PRECONDITION,
            "InsufficientMemory: 4 GiB are needed, 2 are there",
        )
        status = await house.operate("GetStatus")
        assert (status.state, status.failure.reason) == (pb.WORKER_STATE_FAILED, "InsufficientMemory")
        assert await house.http("/healthz") == (200, "ok\n")
        assert (await house.http("/readyz"))[0] == 503
        assert not house.running.done()
        assert (await house.refusal(house.generate().read())).code() is Code.UNAVAILABLE


async def test_a_model_with_a_broken_tokenizer_is_a_failed_worker_that_says_which_file(open_house, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{")
    async with open_house(ready=False, path=tmp_path) as house:
        failure = (await house.operate("GetStatus")).failure
        assert failure.reason == "ModelInvalid"
        assert str(tmp_path / "tokenizer.json") in failure.message
        assert (await house.refusal(house.generate().read())).code() is Code.UNAVAILABLE
        refused = await house.refusal(house.operate("InitializeCache", num_gpu_blocks=1))
        assert refused.code() is Code.FAILED_PRECONDITION
        assert (await house.http("/healthz"))[0] == 200


async def test_the_agreed_count_opens_the_worker(open_house):
    async with open_house(ready=False) as house:
        status = await house.make_ready(num_gpu_blocks=40, num_cpu_blocks=2)
        assert (status.state, status.num_gpu_blocks, status.num_cpu_blocks) == (READY, 40, 2)
        assert (status.pod_uid, status.settings_digest, len(status.model_digest)) == ("pod-uid", "digest", 64)
        assert (status.report.num_gpu_blocks, status.report.gpu_memory_utilization) == (100, 0.5)
        assert (await house.http("/readyz"))[0] == 200
        project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())
        assert status.version == project["project"]["version"]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("InvalidArgument", Code.INVALID_ARGUMENT),
        ("WrongState", Code.FAILED_PRECONDITION),
        ("InsufficientMemory", Code.RESOURCE_EXHAUSTED),
        ("GoldenTokensDiffer", Code.INTERNAL),
    ],
)
async def test_the_engines_refusals_become_codes_with_its_words(open_house, reason, code):
    script = Script(refusals={"initialize_cache": (reason, "7 blocks are too few")})
    async with open_house(script, ready=False) as house:
        refused = await house.refusal(house.make_ready())
        assert (refused.code(), "7 blocks are too few" in refused.details()) == (code, True)


async def test_sleep_and_wake_go_through_and_repeat_without_effect(house):
    asleep = await house.operate("Sleep", level=2)
    assert (asleep.state, asleep.sleep_level, asleep.residual_bytes, asleep.freed_bytes) == (ASLEEP, 2, 7, 993)
    assert (await house.operate("Sleep", level=2)).state == ASLEEP
    refused = await house.refusal(house.generate().read())
    assert "asleep at level 2" in refused.details()
    assert (await house.tokenize("hi")).token_ids
    awake = await house.operate("WakeUp")
    assert (awake.state, awake.sleep_level, awake.last_wake_seconds) == (READY, 0, 1.5)
    assert (await house.operate("WakeUp")).state == READY
    assert methods(house) == ["initialize_cache", "sleep", "sleep", "wake_up"]
    assert await house.collect()


async def test_a_sleep_lets_running_requests_end_and_refuses_new_ones(house):
    call = await house.begin_request()
    sleeping = await house.drained_by(house.operate("Sleep", level=2))
    assert "draining" in (await house.refusal(house.generate().read())).details()
    assert "sleep" not in methods(house)
    house.engine.is_paused = False
    for _ in range(3):
        house.engine.step()
    assert [t async for m in call for t in m.token_ids] == [1, 2, 3]
    assert (await sleeping).state == ASLEEP


async def test_a_sleep_that_aborts_ends_requests_with_a_last_message(house):
    call = await house.begin_request()
    asleep = await house.operate("Sleep", level=2, mode=pb.DRAIN_MODE_ABORT)
    assert asleep.state == ASLEEP
    assert [m.finish_reason async for m in call] == [3]


async def test_a_wake_while_it_drains_cancels_the_sleep(house):
    call = await house.begin_request()
    sleeping = await house.drained_by(house.operate("Sleep", level=2))
    assert (await house.operate("WakeUp")).state == READY
    assert (await house.refusal(sleeping)).code() is Code.FAILED_PRECONDITION
    assert methods(house) == ["initialize_cache"]
    call.cancel()


async def test_a_sleep_whose_caller_hangs_up_leaves_the_worker_open(house):
    call = await house.begin_request()
    sleeping = await house.drained_by(house.operate("Sleep", level=2))
    sleeping.cancel()
    await house.until_state(State.READY)
    call.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)


async def test_a_sleep_that_does_not_drain_in_time_is_refused_with_the_count_and_reopens(open_house):
    async with open_house(drain_timeout_s=0.05) as house:
        call = await house.begin_request()
        refused = await house.refusal(house.operate("Sleep", level=2))
        assert (refused.code(), "1 requests" in refused.details()) == (Code.FAILED_PRECONDITION, True)
        assert (await house.operate("GetStatus")).state == READY
        call.cancel()


async def test_a_refused_sleep_leaves_the_worker_as_it_was(open_house):
    async with open_house(Script(refusals={"sleep": ("Internal", "no")})) as house:
        assert (await house.refusal(house.operate("Sleep", level=2))).code() is Code.INTERNAL
        assert (await house.operate("GetStatus")).state == READY


async def test_a_sleep_while_loading_is_refused(open_house):
    async with open_house(ready=False, loaded=False) as house:
        await house.until_state(State.LOADING)
        refused = await house.refusal(house.operate("Sleep", level=2))
        assert (refused.code(), "loading" in refused.details()) == (Code.FAILED_PRECONDITION, True)


@pytest.mark.parametrize("method", ["PrepareSleep", "Sleep"])
@pytest.mark.parametrize("fields", [{"level": 4}, {"level": 0}, {"level": 2, "tags": ["graphs"]}])
async def test_other_levels_and_parts_are_refused(house, method, fields):
    refused = await house.refusal(house.operate(method, **fields))
    assert refused.code() is Code.INVALID_ARGUMENT
    assert ("level is" in refused.details()) is (len(fields) == 1)
    assert (await house.operate("GetStatus")).state == READY


async def test_the_status_tells_which_forward_pass_computes(house):
    assert (await house.operate("GetStatus")).compute_path == "native portable"


async def test_drain_returns_what_is_left_and_stays(house):
    call = await house.begin_request()
    left = await house.operate("Drain", timeout_seconds=0.05)
    assert left.remaining_requests == 1
    assert (await house.operate("GetStatus")).state == DRAINING
    for _ in range(3):
        house.engine.step()
    assert (await house.operate("Drain", timeout_seconds=5)).remaining_requests == 0
    assert (await house.operate("InitializeCache", num_gpu_blocks=40)).state == READY
    call.cancel()


FENCED = {
    "DetermineNumAvailableBlocks": {},
    "InitializeCache": {"num_gpu_blocks": 40},
    "Drain": {},
    "PrepareSleep": {"level": 2},
    "Sleep": {"level": 2},
    "PrepareWakeUp": {},
    "WakeUp": {},
    "GrantDevice": {"slot_epoch": 1},
    "RevokeDevice": {"slot_epoch": 1},
    "SaveShardedState": {"directory": "/x"},
    "StartProfile": {},
    "StopProfile": {},
    "Shutdown": {},
}


@pytest.mark.parametrize("method", FENCED)
async def test_an_older_epoch_changes_nothing_and_names_both(house, method):
    await house.operate("DetermineNumAvailableBlocks", epoch=7)
    before = await house.operate("GetStatus")
    refused = await house.refusal(house.operate(method, epoch=6, **FENCED[method]))
    assert refused.code() is Code.FAILED_PRECONDITION
    assert "6" in refused.details()
    assert "7" in refused.details()
    assert await house.operate("GetStatus") == before
    assert before.epoch == 7
    assert not house.front.worker.is_ending


@pytest.mark.parametrize("method", FENCED)
async def test_an_epoch_that_no_operator_can_have_is_refused_and_not_remembered(house, method):
    refused = await house.refusal(house.operate(method, epoch=2**63, **FENCED[method]))
    assert refused.code() is Code.INVALID_ARGUMENT
    assert refused.details().startswith(f"epoch is {2**63}; allowed are 0 to {2**31 - 1}")
    assert (await house.operate("GetStatus")).epoch == 0
    assert not house.front.worker.is_ending


async def test_the_last_epoch_of_all_is_taken(house):
    await house.operate("DetermineNumAvailableBlocks", epoch=2**31 - 1)
    assert (await house.operate("GetStatus")).epoch == 2**31 - 1


@pytest.mark.parametrize("method", ["GetStatus", "Sleep", "Shutdown", "PrepareSleep"])
async def test_only_the_operator_may_command_on_either_port(house, method):
    for channel in (house.control, house.serving):
        for metadata in (
            (),
            proof(Role.OPERATOR, seed=STRANGE_SEED),
            proof(Role.GATEWAY),
            proof(Role.OPERATOR, "another-pod"),
        ):
            request = getattr(pb, f"{method}Request")()
            refused = await house.refusal(
                getattr(rpc.WorkerControlStub(channel), method)(request, metadata=metadata, timeout=90)
            )
            expected = Code.PERMISSION_DENIED if channel is house.control else Code.UNIMPLEMENTED
            assert refused.code() is expected
    assert not house.front.worker.is_ending


async def test_cached_prefixes_are_forgotten_by_order(house):
    await house.operate("ResetPrefixCache", epoch=3)
    assert house.engine.engine.commands[-1] == ResetPrefixCache()
    assert (await house.refusal(house.operate("ResetPrefixCache", epoch=2))).code() is Code.FAILED_PRECONDITION


async def test_images_are_forgotten_by_order(house):
    await house.operate("ResetMultimodalCache", epoch=3)
    assert house.engine.engine.commands[-1] == ResetMultimodalCache()
    assert (await house.refusal(house.operate("ResetMultimodalCache", epoch=2))).code() is Code.FAILED_PRECONDITION


async def test_the_status_is_streamed_on_change(house):
    stub = rpc.WorkerControlStub(house.control)
    watch = stub.WatchStatus(pb.GetStatusRequest(), metadata=proof(Role.OPERATOR), timeout=90)
    assert (await watch.read()).state == READY
    await house.operate("Sleep", level=2)
    states = [(await watch.read()).state]
    while states[-1] != ASLEEP:
        states.append((await watch.read()).state)
    watch.cancel()
