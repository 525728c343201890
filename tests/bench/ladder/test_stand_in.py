"""The stand-in worker: a life behind the real protocol."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from bench.ladder.journal import Journal, JournalWriter
from bench.ladder.stand_in import CROWD, Control, Inference, Pace, StandIn, pace_of
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_api.v1 import worker_control_pb2 as control_pb
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from dormouse_operator.testing.fake_worker import FakeWorker


@asynccontextmanager
async def running(tmp_path):
    """Serve a stand-in that has loaded, both services on one port."""
    one = StandIn("d", FakeWorker("u1", "r1"), Pace(0.0, 0.0, {1: 0.0, 2: 0.0}), JournalWriter(tmp_path / "journal"))
    one.worker.finish_loading()
    server = aio.server()
    control_rpc.add_WorkerControlServicer_to_server(Control(one), server)
    rpc.add_InferenceServicer_to_server(Inference(one), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield one, control_rpc.WorkerControlStub(channel), rpc.InferenceStub(channel)
    finally:
        one.changes.close()
        await server.stop(None)


def generate(max_tokens=2):
    return pb.GenerateRequest(request_id="q", sampling_params=pb.SamplingParams(max_tokens=max_tokens))


async def open_it(control):
    await control.InitializeCache(control_pb.InitializeCacheRequest(epoch=1, num_gpu_blocks=10))


async def test_its_whole_life_stands_in_the_journal(tmp_path):
    async with running(tmp_path) as (_, control, inference):
        await open_it(control)
        answers = [answer async for answer in inference.Generate(generate())]
        await control.PrepareSleep(control_pb.PrepareSleepRequest(epoch=1, level=1))
        for level in (1, 2):
            await control.Sleep(control_pb.SleepRequest(epoch=1, level=level))
        await control.WakeUp(control_pb.WakeUpRequest(epoch=1))
    assert [answer.finish_reason for answer in answers] == [pb.FINISH_REASON_UNSPECIFIED, pb.FINISH_REASON_LENGTH]
    noted = [(entry.what, entry.level) for entry in Journal(tmp_path / "journal").read()]
    assert noted == [("ready", 0), ("request", 0), ("asleep", 1), ("asleep", 2), ("waking", 2), ("woken", 2)]


async def test_it_refuses_requests_until_it_is_ready(tmp_path):
    async with running(tmp_path) as (_, _control, inference):
        with pytest.raises(aio.AioRpcError) as caught:
            await inference.Generate(generate()).read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_its_load_and_status_tell_at_once_that_it_opened(tmp_path):
    async with running(tmp_path) as (_, control, inference):
        loads, statuses = inference.WatchLoad(pb.WatchLoadRequest()), control.WatchStatus(control_pb.GetStatusRequest())
        assert not (await loads.read()).ready
        assert (await statuses.read()).state == control_pb.WORKER_STATE_PROFILED
        await open_it(control)
        assert (await loads.read()).ready
        assert (await statuses.read()).state == control_pb.WORKER_STATE_READY


async def test_two_wakes_at_once_are_one(tmp_path):
    async with running(tmp_path) as (one, control, _):
        await open_it(control)
        await control.Sleep(control_pb.SleepRequest(epoch=1, level=1))
        await asyncio.gather(*(control.WakeUp(control_pb.WakeUpRequest(epoch=1)) for _ in range(2)))
        assert [entry.what for entry in Journal(tmp_path / "journal").read()].count("waking") == 1
        assert one.worker.sleep_level == 0


def test_starts_differ_and_are_the_same_in_every_run():
    assert pace_of("a", 1) == pace_of("a", 1) != pace_of("a", 2)


def test_only_the_crowd_wakes_slowly():
    assert min(pace_of(CROWD, 1).wake_s.values()) > max(pace_of("a", 1).wake_s.values())
