"""WorkerControl over real gRPC and in memory: the same promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import OPERATOR_SEED, STRANGE_SEED, book
from dormouse_operator.act.workers import GrpcWorkerControl
from dormouse_operator.errors import WorkerRefused, WorkerUnreachable
from dormouse_operator.model import DeviceGrant, WorkerState
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.grpc import serve
from dormouse_operator.testing.nouns import a_pod
from dormouse_operator.testing.pooled import PooledWorker
from dormouse_operator.testing.workers import FakeWorkers

POD = a_pod(uid="uid-1", ip="127.0.0.1")


@pytest.fixture
def worker(request) -> FakeWorker:
    if "shared" in request.fixturenames:
        return PooledWorker("uid-1", "abcd1234", state=WorkerState.STANDBY)
    return FakeWorker("uid-1", "abcd1234", state=WorkerState.PROFILED)


@pytest.fixture
def shared() -> None:
    """Have the worker be one of a pool."""


@pytest.fixture(params=["memory", "grpc"])
async def control(request, worker):
    if request.param == "memory":
        yield FakeWorkers({POD.ip: worker})
        return
    async with serve(worker, OPERATOR_SEED) as port:
        yield GrpcWorkerControl(book(Role.OPERATOR), port=port)


async def test_a_status_tells_who_answers_and_what_it_measured(control):
    status = await control.get_status(POD)
    assert (status.pod_uid, status.settings_digest, status.state) == ("uid-1", "abcd1234", WorkerState.PROFILED)
    assert status.report.num_gpu_blocks == 2000
    assert status.report.block_size == 16
    assert status.failure is None


async def test_a_worker_that_sleeps_says_what_it_keeps_in_host_memory(control, worker):
    worker.state, worker.sleep_level, worker.host_copy_bytes = WorkerState.ASLEEP, 1, 3 * 2**30
    assert (await control.get_status(POD)).host_copy_bytes == 3 * 2**30


async def test_a_leader_tells_of_every_rank_that_reported(control, worker):
    worker.num_ranks, worker.rank_blocks = 4, {1: 1500, 3: None}
    status = await control.get_status(POD)
    assert [(report.rank, report.num_gpu_blocks) for report in status.rank_reports] == [(0, 2000), (1, 1500), (2, 2000)]
    worker.num_ranks = 1
    assert (await control.get_status(POD)).rank_reports == ()


async def test_a_worker_that_still_loads_has_no_report(control, worker):
    worker.state = WorkerState.LOADING
    assert (await control.get_status(POD)).report is None


async def test_a_failed_worker_says_why(control, worker):
    worker.fail("ModelNotFound", "/models/x does not exist")
    failure = (await control.get_status(POD)).failure
    assert (failure.reason, failure.message) == ("ModelNotFound", "/models/x does not exist")


async def test_the_life_from_profile_to_sleep_and_back(control, worker):
    ready = await control.initialize_cache(POD, epoch=3, num_gpu_blocks=1500, num_cpu_blocks=0)
    assert (ready.state, ready.num_gpu_blocks, ready.epoch) == (WorkerState.READY, 1500, 3)
    assert await control.drain(POD, epoch=3) == 0
    await control.prepare_sleep(POD, epoch=3, level=2, abort=False)
    asleep = await control.sleep(POD, epoch=3, level=2, abort=False)
    assert (asleep.state, asleep.freed_bytes, asleep.residual_bytes) == (WorkerState.ASLEEP, 2**30, 2**28)
    assert asleep.sleep_level == 2
    await control.prepare_wake_up(POD, epoch=3)
    awake = await control.wake_up(POD, epoch=3)
    assert (awake.state, awake.num_gpu_blocks) == (WorkerState.READY, 1500)
    assert worker.commands == ["initialize_cache", "drain", "prepare_sleep", "sleep 2", "prepare_wake_up", "wake_up"]


async def test_a_drain_tells_how_many_are_left_and_a_sleep_can_end_them(control, worker):
    await control.initialize_cache(POD, epoch=1, num_gpu_blocks=10, num_cpu_blocks=0)
    worker.running_requests = 2
    assert await control.drain(POD, epoch=1) == 2
    with pytest.raises(WorkerRefused, match="2 requests"):
        await control.sleep(POD, epoch=1, level=1, abort=False)
    assert (await control.sleep(POD, epoch=1, level=1, abort=True)).state is WorkerState.ASLEEP


async def test_a_sleep_can_be_prepared_by_ending_what_runs(control, worker):
    await control.initialize_cache(POD, epoch=1, num_gpu_blocks=10, num_cpu_blocks=0)
    worker.running_requests = 2
    with pytest.raises(WorkerRefused, match="2 requests"):
        await control.prepare_sleep(POD, epoch=1, level=1, abort=False)
    await control.prepare_sleep(POD, epoch=1, level=1, abort=True)
    assert (worker.state, worker.running_requests) == (WorkerState.DRAINING, 0)


async def test_a_wake_without_the_memory_is_refused_with_what_is_missing(control, worker):
    worker.state, worker.missing_bytes = WorkerState.ASLEEP, 3 * 2**29
    with pytest.raises(WorkerRefused, match=r"1\.50 GiB of memory are missing"):
        await control.prepare_wake_up(POD, epoch=1)


async def test_a_swap_brings_another_engine_that_waits_for_its_cache(control, worker):
    await control.initialize_cache(POD, epoch=1, num_gpu_blocks=10, num_cpu_blocks=0)
    swap = {"arguments": ["--model=/m", "--seed=1"], "settings_digest": "0123abcd", "timeout_s": 5.0}
    swapped = await control.swap_engine(POD, epoch=2, **swap)
    assert (swapped.state, swapped.settings_digest, swapped.epoch) == (WorkerState.PROFILED, "0123abcd", 2)
    assert worker.arguments == ("--model=/m", "--seed=1")
    assert (await control.swap_engine(POD, epoch=2, **swap)).state is WorkerState.PROFILED, "it is done already"


async def test_a_failed_swap_is_refused_in_the_new_engines_words_and_one_under_way_is_told(control, worker):
    await control.initialize_cache(POD, epoch=1, num_gpu_blocks=10, num_cpu_blocks=0)
    worker.swap_failure = "InsufficientMemory: 3 GiB are missing"
    with pytest.raises(WorkerRefused, match="3 GiB are missing"):
        await control.swap_engine(POD, epoch=2, arguments=[], settings_digest="0123abcd", timeout_s=5.0)
    worker.swapping_to = "0123abcd"
    status = await control.get_status(POD)
    assert (status.state, status.settings_digest, status.swapping_to) == (WorkerState.READY, "abcd1234", "0123abcd")


async def test_an_older_epoch_is_refused(control):
    await control.initialize_cache(POD, epoch=5, num_gpu_blocks=10, num_cpu_blocks=0)
    with pytest.raises(WorkerRefused, match=r"FAILED_PRECONDITION.*epoch 4"):
        await control.wake_up(POD, epoch=4)


async def test_a_count_above_the_report_is_refused_with_both_numbers(control):
    with pytest.raises(WorkerRefused, match=r"INVALID_ARGUMENT.*2001.*2000"):
        await control.initialize_cache(POD, epoch=1, num_gpu_blocks=2001, num_cpu_blocks=0)


async def test_nobody_there_is_unreachable():
    with pytest.raises(WorkerUnreachable, match="does not accept connections"):
        await GrpcWorkerControl(book(Role.OPERATOR), port=1).get_status(POD)
    with pytest.raises(WorkerUnreachable, match="does not accept connections"):
        await FakeWorkers().get_status(POD)


async def test_another_token_is_refused_by_role(worker):
    async with serve(worker, OPERATOR_SEED) as port:
        with pytest.raises(WorkerRefused, match=r"PERMISSION_DENIED.*operator"):
            await GrpcWorkerControl(book(Role.OPERATOR, STRANGE_SEED), port=port).get_status(POD)


async def test_an_address_of_ipv6_is_understood(worker):
    async with serve(worker, OPERATOR_SEED, "[::1]:0") as port:
        assert (
            await GrpcWorkerControl(book(Role.OPERATOR), port=port).get_status(replace(POD, ip="::1"))
        ).pod_uid == "uid-1"


GRANT = DeviceGrant(slot="pool-0", slot_epoch=7, budget_bytes=2**30, device="gpu-0")


@pytest.mark.usefixtures("shared")
async def test_a_worker_of_a_pool_wakes_under_a_grant_alone(control):
    assert (await control.get_status(POD)).state is WorkerState.STANDBY
    with pytest.raises(WorkerRefused, match="no grant"):
        await control.wake_up(POD, epoch=1)
    granted = await control.grant_device(POD, epoch=1, grant=GRANT, instance="1")
    assert (granted.grant, granted.instance, granted.needs_grant) == (GRANT, "1", True)
    assert (await control.wake_up(POD, epoch=1)).state is WorkerState.LOADING
    with pytest.raises(WorkerRefused, match="STANDBY"):
        await control.revoke_device(POD, epoch=1, slot_epoch=8)
    assert (await control.sleep(POD, epoch=1, level=3, abort=True)).state is WorkerState.STANDBY
    assert (await control.revoke_device(POD, epoch=1, slot_epoch=8)).grant is None


@pytest.mark.usefixtures("shared")
async def test_a_grant_for_another_instance_or_an_older_one_changes_nothing(control):
    with pytest.raises(WorkerRefused, match="instance 2"):
        await control.grant_device(POD, epoch=1, grant=GRANT, instance="2")
    await control.revoke_device(POD, epoch=1, slot_epoch=8)
    with pytest.raises(WorkerRefused, match="older than 8"):
        await control.grant_device(POD, epoch=1, grant=GRANT, instance="1")
    assert (await control.get_status(POD)).grant is None


async def test_a_worker_that_is_in_no_pool_takes_no_grant(control):
    with pytest.raises(WorkerRefused, match="--device-grants"):
        await control.grant_device(POD, epoch=1, grant=GRANT, instance="")
