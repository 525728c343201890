"""The lease is held in a thread of its own, which a busy loop does not disturb and a dead one does not fool."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from dormouse_kube.api import LEASES
from dormouse_kube.testing import FakeKube
from dormouse_operator.errors import NotLeading
from dormouse_operator.lead.election import Leadership
from dormouse_operator.lead.lease_thread import LeaseThread, Pulse
from dormouse_operator.watch.threads import run_in_thread
from tests.waiting import until


def thread_over(kube):
    threads: list[str] = []

    @asynccontextmanager
    async def opened():
        yield kube

    async def connect():
        threads.append(threading.current_thread().name)
        return opened()

    def lead(made):
        return Leadership(
            made, namespace="system", name="op", pod_uid="pod", clock=lambda: datetime(2025, 1, 1, tzinfo=UTC)
        )

    return LeaseThread(connect, lead), threads


async def test_the_lease_is_taken_kept_raised_and_released_in_another_thread():
    kube = FakeKube()
    lease, threads = thread_over(kube)
    async with lease:
        assert not lease.leads
        with pytest.raises(NotLeading):
            lease.check()
        await lease.acquire()
        lease.check()
        await lease.raise_above(7)
        assert lease.epoch == 8
        keeping = asyncio.create_task(lease.keep())
        await asyncio.sleep(0)
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
        assert repr(lease) == "LeaseThread(Leadership(system/op, epoch 8, held=True))"
        await lease.release()
    assert threads == ["lease"]
    assert kube.peek(LEASES, "system", "op")["spec"]["holderIdentity"] == ""


async def test_a_lease_thread_that_can_not_log_in_says_so():
    async def connect():
        raise OSError("no API server")

    with pytest.raises(OSError, match="no API server"):
        async with LeaseThread(connect, lambda _: None):
            pass


def test_a_loop_that_did_not_turn_for_five_seconds_has_no_pulse():
    now = [100.0]
    pulse = Pulse(lambda: now[0])
    now[0] = 105.0
    assert pulse.is_felt()
    now[0] = 105.1
    assert not pulse.is_felt()
    pulse.beat()
    assert pulse.is_felt()


async def test_the_pulse_beats_while_the_loop_turns():
    now = [100.0]
    pulse = Pulse(lambda: now[0])
    now[0] = 200.0
    beating = asyncio.create_task(pulse.run())
    await asyncio.sleep(0)
    assert pulse.is_felt()
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


async def test_what_runs_in_a_thread_ends_raises_and_is_cancelled_as_if_it_ran_here():
    seen: list[str] = []

    async def ends():
        seen.append(threading.current_thread().name)

    async def fails():
        raise ValueError("words")

    async def waits():
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    await run_in_thread("mine", ends)
    with pytest.raises(ValueError, match="words"):
        await run_in_thread("mine", fails)
    waiting = asyncio.create_task(run_in_thread("mine", waits))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert seen == ["mine", "cancelled"]


def test_a_thread_that_ends_when_nobody_waits_any_more_ends_in_silence():
    """Else pytest tells of the exception in the thread."""
    may_end, threads = threading.Event(), []

    async def takes_its_time():
        threads.append(threading.current_thread())
        try:
            await asyncio.Event().wait()
        finally:
            may_end.wait(90)

    async def gives_up():
        waiting = asyncio.create_task(run_in_thread("mine", takes_its_time, join_s=0.01))
        await until(lambda: threads)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(gives_up())
    may_end.set()
    threads[0].join(90)
    assert not threads[0].is_alive()
