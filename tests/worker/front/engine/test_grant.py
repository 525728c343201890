"""Who may use a device, as pure decisions: what each call may do with a grant."""

from __future__ import annotations

import re

import msgspec
import pytest

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.ipc import EngineStatus, State
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.engine.grant import DeviceGrant, Standing, holds_memory

NOTHING = Standing(needs_grant=True)
FREE = Standing(needs_grant=False)
GRANT = DeviceGrant("pool-0", 7, budget_bytes=100, device="GPU-1")
GRANTED = NOTHING.granted(GRANT)
ASLEEP = EngineStatus(State.ASLEEP, sleep_level=1, sleeping_tags=TAGS)
STANDBY = EngineStatus(State.STANDBY)


def started(grant, now=None):
    """Return the standing with an engine that was started under a grant, and what holds now."""
    return Standing(True, now or grant, (now or grant).slot_epoch, 0, grant)


def other(**fields):
    return DeviceGrant(**{"slot": "pool-0", "slot_epoch": 7, "budget_bytes": 100, "device": "GPU-1", **fields})


@pytest.mark.parametrize("standing", [NOTHING, GRANTED, started(GRANT), NOTHING.granted(other(slot_epoch=3))])
def test_a_grant_of_the_highest_epoch_is_taken_and_taken_twice(standing):
    assert standing.why_not_granted(GRANT) == ""
    assert standing.granted(GRANT).granted(GRANT).grant == GRANT
    assert standing.granted(GRANT).slot_epoch == 7


@pytest.mark.parametrize(
    ("standing", "wanted", "words"),
    [
        (FREE, GRANT, "without --device-grants"),
        (GRANTED, other(slot_epoch=6), "slot_epoch is 6, but this worker has seen 7"),
        (GRANTED, other(slot="pool-1"), "slot_epoch 7 was granted already"),
        (GRANTED, other(budget_bytes=99), "slot_epoch 7 was granted already"),
        (GRANTED, other(device=""), "slot_epoch 7 was granted already"),
        (GRANTED.revoked(7), GRANT, "slot_epoch 7 was revoked; a new turn has a higher one"),
        (NOTHING.revoked(8), GRANT, "this worker has seen 8"),
        (started(GRANT), other(slot_epoch=8, device="GPU-2"), "device is 'GPU-2', its engine was started on 'GPU-1'"),
    ],
)
def test_other_grants_are_refused_with_the_reason(standing, wanted, words):
    assert words in standing.why_not_granted(wanted)


@pytest.mark.parametrize("device", ["", "GPU-1"])
def test_an_engine_that_sleeps_stays_on_its_device_for_the_next_turn(device):
    assert started(GRANT).revoked(8).why_not_granted(other(slot_epoch=9, device=device)) == ""
    assert started(other(device="")).why_not_granted(other(slot_epoch=9)) == ""


@pytest.mark.parametrize("engine", [ASLEEP, STANDBY])
def test_who_holds_no_memory_gives_its_grant_back(engine):
    assert GRANTED.why_not_revoked(7, engine) == ""
    assert GRANTED.revoked(9) == Standing(True, None, slot_epoch=9, revoked_epoch=9)
    assert GRANTED.revoked(9).why_not_revoked(9, engine) == ""


@pytest.mark.parametrize(
    ("standing", "slot_epoch", "engine", "words"),
    [
        (FREE, 9, STANDBY, "without --device-grants"),
        (GRANTED, 6, STANDBY, "slot_epoch is 6, but this worker has seen 7"),
        (GRANTED, 7, EngineStatus(State.READY), "holds memory"),
        (GRANTED, 7, EngineStatus(State.STARTING), "holds memory"),
        (GRANTED, 7, msgspec.structs.replace(ASLEEP, sleeping_tags=("kv_cache",)), "holds memory"),
    ],
)
def test_a_grant_is_kept_with_the_reason(standing, slot_epoch, engine, words):
    assert words in standing.why_not_revoked(slot_epoch, engine)


def test_without_a_grant_nothing_is_taken_back_whatever_there_is():
    assert NOTHING.why_not_revoked(1, EngineStatus(State.STARTING)) == ""


@pytest.mark.parametrize("state", sorted(set(State) - {State.ASLEEP, State.STANDBY}))
def test_an_engine_may_hold_memory_in_every_other_state(state):
    assert holds_memory(EngineStatus(state))


@pytest.mark.parametrize(
    "standing",
    [
        FREE,
        GRANTED,
        started(GRANT),
        started(GRANT, other(slot_epoch=8, budget_bytes=0)),
        started(GRANT, other(budget_bytes=200)),
        started(other(budget_bytes=0, reserved_bytes=9), other(reserved_bytes=9)),
        started(other(budget_bytes=0, reserved_bytes=9, awake_per_slot=2), other(reserved_bytes=8)),
    ],
)
def test_memory_is_taken_under_a_grant_within_its_budget(standing):
    assert standing.why_not_used("WakeUp") == ""


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (NOTHING, r"WakeUp needs a grant of the device \(GrantDevice\), and this worker has none"),
        (GRANTED.revoked(8), "WakeUp needs a grant of the device"),
        (started(GRANT, other(slot_epoch=8, budget_bytes=99)), "budget_bytes of the grant is 99, .* within 100 bytes"),
        (started(other(budget_bytes=0), GRANT), "budget_bytes of the grant is 100, .* without a budget"),
        (started(other(budget_bytes=0, reserved_bytes=8), other(reserved_bytes=9)), "beside 8 bytes for others"),
        (started(other(budget_bytes=0, reserved_bytes=9), other(reserved_bytes=9, awake_per_slot=2)), "beside 9 bytes"),
    ],
)
def test_memory_without_a_grant_or_above_its_budget_is_refused(standing, words):
    assert re.search(words, standing.why_not_used("WakeUp"))


@pytest.mark.parametrize(
    ("standing", "died_in", "again"),
    [
        (FREE, State.ASLEEP, True),
        (GRANTED, State.READY, True),
        (GRANTED, State.WAKING, True),
        (GRANTED, State.ASLEEP, False),
        (NOTHING, State.READY, False),
    ],
)
def test_an_engine_that_died_comes_again_where_it_may_use_the_device(standing, died_in, again):
    assert standing.starts_again(died_in) is again


@pytest.mark.parametrize(("own", "granted", "bound"), [(0, 0, 0), (0, 5, 5), (5, 0, 5), (5, 7, 5), (7, 5, 5)])
def test_an_engine_is_started_within_the_smaller_budget(own, granted, bound):
    settings = EngineSettings(model="m", device_memory_budget_bytes=own, expected_device="GPU-9")
    assert DeviceGrant("s", 1, granted).bound(settings).device_memory_budget_bytes == bound
    assert DeviceGrant("s", 1, granted).bound(settings).expected_device == "GPU-9"
    assert DeviceGrant("s", 1, granted, "GPU-1").bound(settings).expected_device == "GPU-1"
