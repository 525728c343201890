"""A follower's ranks begin together, end together and begin anew. In virtual time, with fake processes."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_worker.common.exit_codes import EXIT_GPU_UNHEALTHY, EXIT_LEADER_GONE
from dormouse_worker.common.ipc import State
from dormouse_worker.front.follower.rank_supervisor import FIRST_DELAY_S, MAX_DELAY_S, WATCH_PERIOD_S, RankKeeper
from dormouse_worker.front.testing import VirtualTime


class FakeRankProcess:
    """Implements `RankProcess`."""

    def __init__(self, rank):
        self.rank = rank
        self.exit = asyncio.get_running_loop().create_future()
        self.joined = asyncio.Event()
        self.silence_s = 0.0

    async def wait(self):
        return await asyncio.shield(self.exit)

    def kill(self):
        self.end(-9)

    def end(self, exit_code):
        if not self.exit.done():
            self.exit.set_result(exit_code)

    def last_words(self):
        return f"words of {self.rank}"

    async def until_joined(self):
        await self.joined.wait()


class Pod:
    """A follower's pod with ranks 2 and 3."""

    def __init__(self):
        self.time = VirtualTime()
        self.generations = []
        self.keeper = RankKeeper(range(2, 4), self.spawn, patience_s=20.0, sleep=self.time.sleep)
        self.running = asyncio.create_task(self.keeper.run())

    async def spawn(self, rank):
        process = FakeRankProcess(rank)
        if rank == 2:
            self.generations.append([])
        self.generations[-1].append(process)
        self.keeper.changes.notify()
        return process

    @property
    def ranks(self):
        return self.generations[-1]

    async def until_started(self, times):
        await self.keeper.changes.until(lambda: len(self.generations) == times and len(self.ranks) == 2)

    async def until_state(self, state):
        await self.keeper.changes.until(lambda: self.keeper.state is state)

    async def join(self):
        for process in self.ranks:
            process.joined.set()
        await self.until_state(State.READY)

    async def stop(self):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


@pytest.fixture
async def pod():
    pod = Pod()
    await pod.until_started(1)
    yield pod
    await pod.stop()
    assert all(process.exit.done() for ranks in pod.generations for process in ranks)


async def test_a_pod_is_ready_once_all_of_its_ranks_have_joined(pod):
    pod.ranks[0].joined.set()
    await asyncio.sleep(0)
    assert pod.keeper.state is State.STARTING
    await pod.join()


async def test_where_one_rank_ends_the_others_do_and_all_begin_anew(pod):
    await pod.join()
    first = pod.ranks
    first[1].end(EXIT_LEADER_GONE)
    await pod.time.until_nap(FIRST_DELAY_S)
    assert (pod.keeper.state, first[0].exit.result()) == (State.STARTING, -9)
    assert pod.keeper.last_failure.reason == "GroupBroken"
    assert "rank 3 ended with exit code 7; its last words: words of 3" in pod.keeper.last_failure.message
    pod.time.advance(FIRST_DELAY_S)
    await pod.until_started(2)


async def test_ranks_that_never_join_are_started_less_and_less_often(pod):
    for number, delay_s in enumerate((1.0, 2.0, 4.0, MAX_DELAY_S, MAX_DELAY_S), 1):
        pod.ranks[0].end(1)
        await pod.time.until_nap(delay_s)
        pod.time.advance(delay_s)
        await pod.until_started(number + 1)
    await pod.join()
    pod.ranks[0].end(1)
    await pod.time.until_nap(FIRST_DELAY_S)


async def test_a_rank_that_shows_no_life_is_killed(pod):
    """A stopped one does not see that its leader has gone. Once may be a front that was held up itself."""
    await pod.join()
    pod.ranks[1].silence_s = 21.0
    await pod.time.until_nap(WATCH_PERIOD_S)
    pod.time.advance(WATCH_PERIOD_S)
    await pod.time.until_nap(WATCH_PERIOD_S)
    assert not pod.ranks[1].exit.done()
    pod.time.advance(WATCH_PERIOD_S)
    await pod.time.until_nap(FIRST_DELAY_S)
    assert "rank 3 was killed by signal 9" in pod.keeper.last_failure.message


async def test_on_a_device_that_is_ill_nothing_is_started_again(pod):
    pod.ranks[1].end(EXIT_GPU_UNHEALTHY)
    await pod.until_state(State.FAILED)
    await pod.running
    assert pod.keeper.last_failure.reason == "GPUUnhealthy"
    assert len(pod.generations) == 1


async def test_a_pod_that_ends_keeps_its_ranks_until_their_leader_lets_go_and_begins_nothing_again(pod):
    await pod.join()
    assert pod.keeper.part(), "the leader still computes with them"
    assert not pod.ranks[0].exit.done()
    pod.ranks[0].end(0)
    await pod.running
    assert pod.ranks[1].exit.done()
    assert len(pod.generations) == 1


async def test_a_pod_that_ends_waits_for_no_leader_that_has_not_welcomed_its_ranks(pod):
    pod.ranks[0].joined.set()
    assert not pod.keeper.part()
