"""Orders of pools run one at a time for each pod, what follows from an order included."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

from dormouse_operator.act.pool_effects import Order
from dormouse_operator.act.pool_orders import PoolOrders
from dormouse_operator.decide.pools.commands import GrantDevice, RevokeDevice, Sleep, WakeUp, following
from dormouse_operator.errors import RequestCameIn, WorkerRefused
from dormouse_operator.model import Key, PoolKey
from dormouse_operator.model.pools import Replica, Tenant, TenantState
from dormouse_operator.testing.nouns import a_pod

POOL, REPLICA = PoolKey("default", "gpus"), Replica(Key("default", "a"), 0)
GRANT, WAKE = GrantDevice(REPLICA, 7, "i"), WakeUp(REPLICA, 7)
SLEEP, REVOKE = Sleep(REPLICA, 1, 7, 0), RevokeDevice(REPLICA, 7)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Hands:
    """Effects that note what they were told, end when they may, and refuse some."""

    done: list = field(default_factory=list)
    refuses: tuple = ()
    refusal: type = WorkerRefused
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def act(self, order):
        await self.gate.wait()
        if isinstance(order.command, self.refuses):
            raise self.refusal("not now")
        self.done.append(order.command)


@pytest.fixture
def hands():
    return Hands()


@pytest.fixture
async def orders(hands):
    ended, is_over = [], asyncio.Event()

    def note(*told):
        ended.append(told)
        is_over.set()

    orders = PoolOrders(hands, clock=lambda: 0.0, on_done=note)
    orders.ended, orders.is_over = ended, is_over
    yield orders
    await orders.stop()


def order(command, then=None):
    return REPLICA, Order(command=command, namespace="default", pod=a_pod(), grant=None, now=NOW, then=then)


async def settle(orders):
    await orders.is_over.wait()
    orders.is_over.clear()


async def test_what_follows_from_an_order_is_done_in_the_same_turn(orders, hands):
    hands.gate.set()
    orders.begin(POOL, [order(GRANT, then=WAKE)])
    await settle(orders)
    assert (hands.done, orders.ended) == ([GRANT, WAKE], [(POOL, REPLICA, 0.0)])


async def test_neither_an_order_under_way_nor_what_follows_from_it_is_begun_a_second_time(orders, hands):
    orders.begin(POOL, [order(GRANT, then=WAKE)])
    await asyncio.sleep(0)
    for command in (GRANT, WAKE):
        orders.look(POOL)
        orders.begin(POOL, [order(command)])
    hands.gate.set()
    await settle(orders)
    assert hands.done == [GRANT, WAKE]


async def test_a_sleep_goes_on_though_its_worker_took_in_what_was_on_its_way(orders, hands):
    """A sleep begun anew would open the worker in between."""
    orders.begin(POOL, [order(SLEEP, then=REVOKE)])
    await asyncio.sleep(0)
    orders.look(POOL)
    orders.begin(POOL, [order(replace(SLEEP, request_counter=1), then=REVOKE)])
    hands.gate.set()
    await settle(orders)
    assert hands.done == [SLEEP, REVOKE]


async def test_a_sleep_that_ends_requests_takes_the_place_of_one_that_waits_for_them(orders, hands):
    orders.begin(POOL, [order(SLEEP, then=REVOKE)])
    await asyncio.sleep(0)
    orders.look(POOL)
    orders.begin(POOL, [order(must := replace(SLEEP, must_abort=True), then=REVOKE)])
    hands.gate.set()
    await settle(orders)
    assert hands.done == [must, REVOKE]


async def test_nothing_follows_from_an_order_that_was_refused_and_only_the_wake_counts_as_refused(orders, hands):
    hands.gate.set()
    hands.refuses = (GrantDevice,)
    orders.begin(POOL, [order(GRANT, then=WAKE)])
    await settle(orders)
    assert (hands.done, dict(orders.look(POOL))) == ([], {})
    hands.refuses = (WakeUp,)
    orders.begin(POOL, [order(WAKE)])
    await settle(orders)
    assert dict(orders.look(POOL)) == {REPLICA: 7}


async def test_the_grant_of_a_worker_that_took_a_request_in_and_sleeps_not_is_not_ended(orders, hands):
    hands.gate.set()
    hands.refuses, hands.refusal = (Sleep,), RequestCameIn
    orders.begin(POOL, [order(SLEEP, then=REVOKE)])
    await settle(orders)
    assert (hands.done, orders.ended) == ([], [(POOL, REPLICA, 0.0)])


async def test_what_was_derived_from_before_an_order_had_ended_waits_for_another_look(orders, hands):
    hands.gate.set()
    orders.look(POOL)
    orders.begin(POOL, [order(SLEEP)])
    await settle(orders)
    orders.begin(POOL, [order(SLEEP)])
    assert "0 under way" in repr(orders)
    assert hands.done == [SLEEP], "it sleeps by now: that was not seen yet"
    orders.look(POOL)
    orders.begin(POOL, [order(REVOKE)])
    await settle(orders)
    assert hands.done == [SLEEP, REVOKE]


@pytest.mark.parametrize(
    ("command", "state", "then"),
    [
        (SLEEP, TenantState.SERVING, REVOKE),
        (GRANT, TenantState.ASLEEP, WAKE),
        (GRANT, TenantState.STANDBY, WAKE),
        (GRANT, TenantState.RISING, None),
        (WAKE, TenantState.ASLEEP, None),
    ],
)
def test_a_sleep_is_followed_by_the_end_of_the_grant_and_a_grant_by_a_wake(command, state, then):
    assert following(command, Tenant(replica=REPLICA, state=state)) == then
