"""When a pool's GPUs are the cluster's again: after all have been asleep for so long, and never while anybody calls."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide.pools.releasing import idleness_of, release_due
from dormouse_operator.model.pool_device import PoolDevice
from dormouse_operator.model.pools import Idleness, Pool
from dormouse_operator.testing.nouns import NOW
from tests.operator_.decide.pools.nouns import A, ago, demand, demands, fouled, free, granting, held, key, yielding

POOL = Pool(key=key("s"), uid="u", generation=1, device=PoolDevice("gpu.example.com"), num_slots=1, release_after_s=60)
QUIET = demands(demand("a", wanted=0))
CALLED = demands(demand("a", wanted=1))


def idle(*slots, pool=POOL, asked=QUIET, now=NOW, gateways_heard=True):
    return idleness_of(pool, slots or (free(),), asked, now, gateways_heard=gateways_heard)


def recorded(since=None, released=None, **fields):
    return replace(POOL, idleness=Idleness(since, released), **fields)


def test_the_count_begins_when_nobody_is_awake_and_ends_in_a_release():
    assert idle() == Idleness(NOW)
    assert idle(pool=recorded(ago(59))) == Idleness(ago(59))
    assert idle(pool=recorded(ago(60))) == Idleness(ago(60), NOW)
    assert idle(pool=recorded(ago(900), ago(840))) == Idleness(ago(900), ago(840))


@pytest.mark.parametrize("slot", [held(A), granting(A), yielding(A), fouled(A)])
def test_a_slot_that_anybody_has_or_may_have_keeps_the_pool(slot):
    assert idle(free("t"), slot, pool=recorded(ago(900))) == Idleness()


def test_a_call_brings_a_released_pool_back():
    assert idle(pool=recorded(ago(900), ago(840)), asked=CALLED) == Idleness()


def test_a_pool_that_is_not_to_be_released_is_not_nor_stays_so():
    for pool in (recorded(ago(900), ago(1), release_after_s=0), recorded(ago(900), ago(1), is_deleting=True)):
        assert idle(pool=pool) == Idleness()


def test_a_longer_time_brings_pods_back_until_it_is_over():
    assert idle(pool=recorded(ago(900), ago(840), release_after_s=1000)) == Idleness(ago(900))


def test_while_a_gateway_is_not_heard_nothing_is_released_and_what_is_stays():
    assert idle(pool=recorded(ago(900)), gateways_heard=False) == Idleness(ago(900))
    assert idle(pool=recorded(ago(900), ago(840)), gateways_heard=False) == Idleness(ago(900), ago(840))


def test_time_alone_releases_once():
    assert release_due(POOL, Idleness(ago(50)), NOW) == NOW + timedelta(seconds=10)
    assert release_due(POOL, Idleness(ago(60)), NOW) is None
    assert release_due(POOL, Idleness(ago(900), ago(840)), NOW) is None
    assert release_due(POOL, Idleness(), NOW) is None


HISTORY = st.lists(
    st.tuples(
        st.sampled_from([1, 20, 59, 60, 300]),  # seconds until the next pass
        st.sampled_from([free(), held(A), granting(A), yielding(A)]),
        st.booleans(),  # called
        st.booleans(),  # every gateway is heard
        st.sampled_from([0, 60, 90]),  # releaseAfterSeconds, as people change it
    ),
    max_size=30,
)


@given(HISTORY)
def test_whatever_happens_it_is_released_only_after_so_long_of_nobody(history):
    """The count of a model that sees everything: what is released was idle, and heard to be, for all of its time."""
    pool, now, quiet_since = POOL, NOW, None
    for seconds, slot, is_called, is_heard, after_s in history:
        now += timedelta(seconds=seconds)
        pool = replace(pool, release_after_s=after_s)
        found = idle(slot, pool=pool, asked=CALLED if is_called else QUIET, now=now, gateways_heard=is_heard)
        is_used = is_called or slot != free()
        quiet_since = None if is_used or not after_s else quiet_since or now
        if found.released_since:
            assert quiet_since
            assert now >= quiet_since + timedelta(seconds=after_s)
            assert is_heard or pool.is_released
        is_due = quiet_since is not None and now >= quiet_since + timedelta(seconds=after_s) and is_heard
        assert not is_due or found.released_since, "it is released as soon as it may be"
        pool = replace(pool, idleness=found)
