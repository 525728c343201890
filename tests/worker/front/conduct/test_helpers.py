"""When the processes beside the front come and go: with READY and with STANDBY."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from dormouse_worker.common.ipc import State
from dormouse_worker.front.conduct.helpers import Helpers

LEVELS = [State.READY, State.ASLEEP, State.READY, State.STANDBY, State.STARTING, State.READY]


class Served:
    """Remembers what it was asked; starting takes until it is let go on."""

    def __init__(self):
        self.asked = []
        self.goes_on = asyncio.Event()

    async def warm(self, _engine):
        self.asked.append("start")
        await self.goes_on.wait()

    def rest(self):
        self.asked.append("end")


@pytest.fixture
async def served():
    return Served()


def helpers_of(served, *, starts_ahead=True):
    worker = SimpleNamespace(served=served, board=SimpleNamespace(engine=None))
    return Helpers(worker, starts_ahead=starts_ahead)


async def through(helpers, *states):
    for state in states:
        helpers.follow(state)
        await asyncio.sleep(0)


async def test_they_are_started_whenever_it_serves_and_ended_in_standby(served):
    served.goes_on.set()
    helpers = helpers_of(served)
    await through(helpers, *LEVELS)
    assert served.asked == ["start", "start", "end", "start"]
    await helpers.close()


async def test_who_starts_already_is_not_started_twice_and_none_starts_once_it_is_closed(served):
    helpers = helpers_of(served)
    await through(helpers, State.READY, State.DRAINING, State.READY)
    assert served.asked == ["start"]
    assert repr(helpers) == "Helpers(starting)"
    await helpers.close()
    assert repr(helpers) == "Helpers(settled)"


async def test_where_none_starts_ahead_those_that_came_end_all_the_same(served):
    helpers = helpers_of(served, starts_ahead=False)
    await through(helpers, *LEVELS)
    assert served.asked == ["end"]
    await helpers.close()
