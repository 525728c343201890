"""A bell wakes the one task that listens to it."""

from __future__ import annotations

import asyncio

from dormouse_worker.front.requests.wake_event import WakeEvent


async def test_who_waits_hears_the_ring():
    bell = WakeEvent()
    waiting = asyncio.create_task(bell.heard())
    await asyncio.sleep(0)
    assert not waiting.done()
    bell.ring()
    await waiting


async def test_rings_that_nobody_waited_for_are_heard_once():
    bell = WakeEvent()
    bell.ring()
    bell.ring()
    await bell.heard()
    waiting = asyncio.create_task(bell.heard())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_a_ring_after_its_listener_left_does_no_harm():
    bell = WakeEvent()
    waiting = asyncio.create_task(bell.heard())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    bell.ring()
    assert repr(bell) == "WakeEvent(rung=True)"
