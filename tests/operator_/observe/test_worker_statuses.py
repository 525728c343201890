"""Workers on their way tell by themselves; nobody polls, and nothing stays open to those that have settled."""

from __future__ import annotations

import asyncio
import random

import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import OPERATOR_SEED, STRANGE_SEED, book
from dormouse_operator.act.workers import GrpcWorkerControl
from dormouse_operator.errors import WorkerRefused
from dormouse_operator.model import Container, Key, Pod, WorkerState
from dormouse_operator.observe.worker_statuses import AskedStatuses, FollowedStatuses
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.grpc import serve
from dormouse_operator.testing.workers import FakeWorkers

KEY = Key("team", "tiny")
HERE = Pod(name="tiny-0", uid="u", index=0, revision="d", owner_uid="o", ip="127.0.0.1")
POD = Pod(name="tiny-0", uid="u", index=0, revision="d", owner_uid="o", ip="10.0.0.1", container=Container())


async def turn():
    for _ in range(10):
        await asyncio.sleep(0)


class Stage:
    """A worker, and who follows it."""

    def __init__(self) -> None:
        self.worker = FakeWorker("u", "d")
        self.workers = FakeWorkers({POD.ip: self.worker})
        self.marked: list[Key] = []
        self.pauses: list[float] = []
        self.statuses = FollowedStatuses(self.workers, self.marked.append, sleep=self.pause, rng=random.Random(1))

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
async def stage():
    made = Stage()
    yield made
    await made.statuses.close()


async def test_a_change_is_told_and_known_without_another_question(stage):
    assert (await stage.statuses.ask(KEY, POD)).state is WorkerState.LOADING
    assert stage.statuses.follow(KEY, ["u"])
    stage.worker.finish_loading()
    await turn()
    assert stage.marked == [KEY]
    assert (await stage.statuses.ask(KEY, POD)).state is WorkerState.PROFILED
    assert stage.workers.asked[POD.ip] == 1
    assert repr(stage.statuses) == "FollowedStatuses(1 followed)"


async def test_requests_that_end_are_seen_though_no_stream_tells_of_them(stage):
    stage.worker.state, stage.worker.running_requests = WorkerState.READY, 1
    assert (await stage.statuses.ask(KEY, POD)).running_requests == 1
    await turn()
    stage.worker.running_requests = 0
    await turn()
    assert stage.marked == []
    assert (await stage.statuses.ask(KEY, POD)).running_requests == 0


async def test_a_worker_that_has_settled_is_left_alone(stage):
    await stage.statuses.ask(KEY, POD)
    stage.statuses.follow(KEY, ["u"])
    await turn()
    assert stage.workers.watching[POD.ip] == 1
    stage.statuses.follow(KEY, [])
    await turn()
    assert stage.workers.watching[POD.ip] == 0
    assert repr(stage.statuses) == "FollowedStatuses(0 followed)"


async def test_after_a_command_the_worker_is_asked_as_the_stream_may_be_behind(stage):
    await stage.statuses.ask(KEY, POD)
    stage.worker.finish_loading()
    stage.statuses.refresh(KEY)
    assert (await stage.statuses.ask(KEY, POD)).state is WorkerState.PROFILED
    assert stage.workers.asked[POD.ip] == 2


async def test_a_worker_that_takes_requests_is_asked_again_and_one_that_rests_is_not(stage):
    for state, num_asked in ((WorkerState.READY, 3), (WorkerState.DRAINING, 6), (WorkerState.ASLEEP, 7)):
        stage.worker.state = state
        stage.statuses.refresh(KEY)
        for counter in range(3):
            stage.worker.request_counter = counter
            told = (await stage.statuses.ask(KEY, POD)).request_counter
            assert told == (0 if state is WorkerState.ASLEEP else counter)
        assert stage.workers.asked[POD.ip] == num_asked


async def test_a_worker_that_does_not_answer_is_tried_with_growing_pauses_until_it_does(stage):
    del stage.workers.workers[POD.ip]
    assert await stage.statuses.ask(KEY, POD) == "it does not accept connections"
    stage.statuses.follow(KEY, ["u"])
    await turn()
    assert stage.marked == [], "the same as before is no news"
    assert 0.05 <= stage.pauses[0] <= 0.1 <= max(stage.pauses) <= 2.0
    stage.workers.workers[POD.ip] = stage.worker
    await turn()
    assert stage.marked == [KEY]
    assert (await stage.statuses.ask(KEY, POD)).state is WorkerState.LOADING


async def test_a_stream_that_breaks_is_told_and_opened_again(stage):
    await stage.statuses.ask(KEY, POD)
    stage.statuses.follow(KEY, ["u"])
    await turn()
    worker = stage.workers.workers.pop(POD.ip)
    await turn()
    assert await stage.statuses.ask(KEY, POD) == "it does not accept connections"
    stage.workers.workers[POD.ip] = worker
    await turn()
    assert stage.workers.watching[POD.ip] == 1


async def test_a_stream_that_ends_in_a_way_that_nobody_foresaw_is_begun_anew(stage):
    await stage.statuses.ask(KEY, POD)
    stage.statuses.follow(KEY, ["u"])
    await turn()
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "follow tiny-0")
    task.cancel()
    await turn()
    stage.worker.finish_loading()
    assert (await stage.statuses.ask(KEY, POD)).state is WorkerState.PROFILED
    stage.statuses.follow(KEY, ["u"])
    await turn()
    assert stage.workers.watching[POD.ip] == 1


async def test_asking_anew_each_time_needs_no_stream(stage):
    asked = AskedStatuses(stage.workers)
    await asked.ask(KEY, POD)
    stage.worker.finish_loading()
    assert (await asked.ask(KEY, POD)).state is WorkerState.PROFILED
    assert not asked.follow(KEY, ["u"])
    asked.refresh(KEY)
    assert stage.workers.watching[POD.ip] == 0


@pytest.mark.parametrize("kind", ["memory", "grpc"])
async def test_a_stream_of_states_begins_at_once_and_tells_every_change(kind):
    worker = FakeWorker("u", "d")
    async with serve(worker, OPERATOR_SEED) as port:
        control = (
            FakeWorkers({"127.0.0.1": worker})
            if kind == "memory"
            else GrpcWorkerControl(book(Role.OPERATOR), port=port)
        )
        stream = control.watch_status(HERE)
        assert (await anext(stream)).state is WorkerState.LOADING
        worker.finish_loading()
        assert (await anext(stream)).state is WorkerState.PROFILED
        await stream.aclose()


async def test_a_stream_needs_the_operators_role():
    async with serve(FakeWorker("u", "d"), OPERATOR_SEED) as port:
        with pytest.raises(WorkerRefused, match="PERMISSION_DENIED"):
            await anext(GrpcWorkerControl(book(Role.OPERATOR, STRANGE_SEED), port=port).watch_status(HERE))


class LateWorkers(FakeWorkers):
    """Workers whose answers are held up on their way."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.way = asyncio.Event()
        self.way.set()

    async def get_status(self, pod):
        told = await super().get_status(pod)
        await self.way.wait()
        return told


async def test_an_answer_that_was_held_up_does_not_stay_in_the_place_of_what_the_stream_told_meanwhile():
    worker, marked = FakeWorker("u", "d"), []
    workers = LateWorkers({POD.ip: worker})
    statuses = FollowedStatuses(workers, marked.append)
    await statuses.ask(KEY, POD)
    statuses.follow(KEY, ["u"])
    await turn()
    statuses.refresh(KEY)
    workers.way.clear()
    late = asyncio.ensure_future(statuses.ask(KEY, POD))
    await turn()
    worker.finish_loading()
    await turn()
    assert marked == [KEY]
    workers.way.set()
    assert (await late).state is WorkerState.LOADING
    assert (await statuses.ask(KEY, POD)).state is WorkerState.PROFILED
    await statuses.close()
