"""A gateway that ends serves on until nobody calls any more, or its time is over."""

from __future__ import annotations

from itertools import count

from dormouse_gateway import leaving


async def test_it_waits_as_long_as_requests_come():
    taken = iter([0, 0, 5, 5, 9, 9, 9])
    await leaving.until_quiet(lambda: next(taken), timeout_s=60, quiet_s=0)
    assert list(taken) == []


async def test_it_waits_no_longer_than_it_may():
    numbers = count()
    waited_s = await leaving.until_quiet(lambda: next(numbers), timeout_s=0.05, quiet_s=0.01)
    assert waited_s >= 0.05
