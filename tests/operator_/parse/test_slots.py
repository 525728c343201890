"""A slot comes back from the pool's status as it was written; what nobody wrote so is given to nobody."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.model import Key
from dormouse_operator.model.pools import Holding, Refusal, Replica, Sleeper, Slot, SlotPhase, WayOut
from dormouse_operator.parse import parse_slot, parse_time, write_slot, write_time

NOW = datetime(2026, 1, 1, 12, 0, 0, 250000, tzinfo=UTC)
SINCE = "2026-01-01T12:00:00.250000Z"
counts = st.integers(0, 2**62)
times = st.timedeltas(timedelta(), timedelta(days=9999)).map(lambda delta: datetime(2025, 1, 1, tzinfo=UTC) + delta)
members = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
replicas = st.builds(Replica, st.builds(Key, st.just("team"), members), st.integers(0, 999))
refusals = st.builds(
    Refusal, replica=replicas, times=st.integers(1, 99), at=times, reason=st.text(max_size=9), missing_bytes=counts
)
sleepers = st.builds(Sleeper, replica=replicas, level=st.integers(1, 3), residual_bytes=counts)


@st.composite
def slots(draw):
    """Return a slot that the arbiter may have written, in any phase."""
    phase = draw(st.sampled_from(SlotPhase))
    is_held = phase in {SlotPhase.HELD, SlotPhase.YIELDING}
    most = 0 if phase is SlotPhase.FREE else 3
    held = draw(st.lists(replicas, min_size=int(is_held), max_size=most, unique=True))
    others = replicas.filter(lambda replica: replica not in held)
    leaves = phase is SlotPhase.YIELDING or (phase is SlotPhase.FOULED and held and draw(st.booleans()))
    comes = phase is SlotPhase.GRANTING or (phase is SlotPhase.YIELDING and draw(st.booleans()))
    return Slot(
        name=draw(st.from_regex(r"[a-z]{1,9}-[0-9]{1,3}", fullmatch=True)),
        since=draw(times),
        phase=phase,
        holders=tuple(Holding(replica, draw(times)) for replica in held),
        leaving=draw(st.sampled_from(held)) if leaves else None,
        next=draw(others) if comes else None,
        way_out=draw(st.sampled_from(WayOut)) if leaves else WayOut.LEVEL1,
        deepening=tuple(draw(st.lists(replicas, max_size=3))),
        epoch=draw(counts),
        refusals=tuple(draw(st.lists(refusals, max_size=3))),
        sleepers=tuple(draw(st.lists(sleepers, max_size=3))),
    )


@given(slot=slots(), node=st.sampled_from(["", "node-1"]))
def test_every_slot_comes_back_as_it_was_written(slot, node):
    written = write_slot(slot, node=node, devices=[f"driver/{node}/gpu-0"] if node else [])
    assert parse_slot(json.loads(json.dumps(written)), "team") == slot


def test_the_way_out_of_a_fouled_slot_that_nobody_leaves_comes_back():
    slot = Slot(name="p-0", since=NOW, phase=SlotPhase.FOULED, way_out=WayOut.POD, epoch=3)
    assert parse_slot(write_slot(slot), "team") == slot


def test_what_says_nothing_is_left_out():
    assert write_slot(Slot(name="p-0", since=NOW)) == {"name": "p-0", "phase": "Free", "since": SINCE, "epoch": 0}


def test_a_slot_is_written_for_people_too():
    a, b = Replica(Key("team", "a"), 0), Replica(Key("team", "b"), 12)
    slot = Slot(
        name="p-0",
        since=NOW,
        phase=SlotPhase.YIELDING,
        holders=(Holding(a, NOW),),
        leaving=a,
        next=b,
        epoch=7,
        refusals=(Refusal(replica=b, times=2, at=NOW, reason="SlotTooSmall", missing_bytes=5),),
        sleepers=(Sleeper(replica=b, level=2, residual_bytes=9),),
    )
    assert write_slot(slot, node="node-1", devices=("d/node-1/gpu-0",)) == {
        "name": "p-0",
        "phase": "Yielding",
        "since": SINCE,
        "epoch": 7,
        "node": "node-1",
        "devices": ["d/node-1/gpu-0"],
        "holders": [{"replica": "a[0]", "since": SINCE}],
        "leaving": "a[0]",
        "next": "b[12]",
        "wayOut": "Level1",
        "refusals": [{"replica": "b[12]", "times": 2, "at": SINCE, "reason": "SlotTooSmall", "missingBytes": 5}],
        "sleepers": [{"replica": "b[12]", "level": 2, "residualBytes": 9}],
    }


@pytest.mark.parametrize("name", ["7b", "70", "llama-3.1-8b"])
def test_models_may_be_called_by_digits(name):
    slot = Slot(name="p-0", since=NOW, phase=SlotPhase.HELD, holders=(Holding(Replica(Key("team", name), 0), NOW),))
    assert parse_slot(write_slot(slot), "team") == slot


def test_times_are_written_in_utc_with_their_fraction():
    elsewhere = NOW.astimezone(timezone(timedelta(hours=2)))
    assert write_time(elsewhere) == SINCE
    assert parse_time(SINCE) == NOW


def test_fields_of_a_later_release_are_no_contradiction():
    raw = {"name": "p-0", "phase": "Free", "since": SINCE, "epoch": 4, "later": {"x": 1}}
    assert parse_slot(raw, "team") == Slot(name="p-0", since=NOW, epoch=4)


GOOD = {"name": "p-0", "phase": "Held", "since": SINCE, "epoch": 4, "holders": [{"replica": "a[0]", "since": SINCE}]}
ODD = [
    {"phase": "Lent"},
    {"phase": "Granting"},  # to nobody
    {"phase": "Free"},  # with a holder
    {"since": None},
    {"since": "yesterday"},
    {"since": "2026-01-01T12:00:00"},  # of which zone?
    {"epoch": -1},
    {"epoch": True},
    {"epoch": "4"},
    {"next": "a[0]"},  # a holder
    {"leaving": "a[0]"},  # of a slot that nobody has to leave
    {"wayOut": "Window"},
    {"deepening": ["a"]},
    {"refusals": [{"replica": "b[0]", "times": 1}]},
    {"sleepers": [{"replica": "b[0]", "level": "deep"}]},
    {"holders": [{"replica": "a[0]", "since": SINCE}, 5]},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_what_contradicts_itself_is_fouled_with_those_who_may_hold_memory(odd):
    slot = parse_slot({**GOOD, **odd}, "team")
    assert (slot.name, slot.phase) == ("p-0", SlotPhase.FOULED)
    assert [str(holding.replica) for holding in slot.holders] == ["team/a[0]"]
    assert slot.epoch == (0 if "epoch" in odd else 4), "an order of before must not outrank one of now"


def test_who_comes_or_leaves_may_hold_memory_of_a_slot_that_cannot_be_read():
    raw = {**GOOD, "phase": "Lent", "holders": "all", "leaving": "b[1]", "next": "c[2]"}
    assert [str(holding.replica) for holding in parse_slot(raw, "team").holders] == ["team/b[1]", "team/c[2]"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["a[0]", SINCE, "Held"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["replica", "since"]), inner),
    max_leaves=6,
)


@given(raw=st.dictionaries(st.sampled_from([*write_slot(Slot(name="p", since=NOW)), "holders", "next"]), ANYTHING))
def test_nothing_that_stands_there_ends_in_an_exception(raw):
    slot = parse_slot({**raw, "name": "p-0"}, "team")
    assert parse_slot(write_slot(slot), "team") == slot
