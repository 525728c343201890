"""The transaction over parts: every step fails once, and everything is as it was."""

from contextlib import contextmanager

import pytest

from dormouse_worker.common.commands import KV_CACHE, TAGS, WEIGHTS
from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.sleep import SleepCycle
from dormouse_worker.model.stopwatch import Stopwatch

SIZES = {"layers": (WEIGHTS, 60), "cache": (KV_CACHE, 30), "swap": (KV_CACHE, 10)}


class Memory:
    """What all parts share: a device of 100 bytes, the verbs in their order, and one verb that fails."""

    def __init__(self):
        self.neighbour_bytes = 0
        self.parts = [Part(name, *size, self) for name, size in SIZES.items()]
        self.calls = []
        self.failing = ""
        self.error = OSError("injected")

    @property
    def free_bytes(self):
        return 100 - self.neighbour_bytes - sum(part.held_bytes for part in self.parts)

    @contextmanager
    def promised(self, num_bytes):
        if num_bytes > self.free_bytes:
            raise DeviceOutOfMemory(num_bytes, self.free_bytes)
        yield

    @property
    def states(self):
        return [(part.state, part.level, part.held_bytes) for part in self.parts]

    def call(self, name):
        self.calls.append(name)
        if name == self.failing:
            self.failing = ""
            raise self.error


class Part:
    """Implements `SleepPart`; asserts that every verb comes in a state in which it may."""

    def __init__(self, name, tag, size, memory):
        self.name, self.tag, self.wake_bytes, self.memory = name, tag, size, memory
        self.state, self.level, self.saved_level, self.held_bytes = "awake", 0, 0, size
        self.has_arrived = False

    @property
    def is_asleep(self):
        return self.state in {"asleep", "reserved"}

    def save(self, level):
        assert self.state in {"awake", "asleep"}
        self.memory.call(f"save {self.name}")
        self.saved_level = level

    def forget(self):
        assert self.saved_level
        self.saved_level = 0

    def drop(self):
        assert self.state in {"awake", "asleep", "restored"}
        self.memory.call(f"drop {self.name}")
        self.level, self.saved_level = max(self.level, self.saved_level), 0
        assert self.level, "neither saved nor asleep before"
        freed, self.held_bytes, self.state = self.held_bytes, 0, "asleep"
        return freed

    def reserve(self):
        assert self.state == "asleep"
        self.memory.call(f"reserve {self.name}")
        if self.wake_bytes > self.memory.free_bytes:
            raise DeviceOutOfMemory(self.wake_bytes, self.memory.free_bytes)
        self.state, self.held_bytes = "reserved", self.wake_bytes

    def cancel(self):
        assert self.state in {"asleep", "reserved"}
        self.state, self.held_bytes = "asleep", 0

    def restore(self):
        assert self.state == "reserved"
        try:
            self.memory.call(f"restore {self.name}")
        except BaseException:
            self.cancel()
            raise
        self.state, self.has_arrived = "restored", False

    @property
    def is_arriving(self):
        return self.state == "restored" and not self.has_arrived

    def arrive(self):
        assert self.state == "restored"
        self.memory.call(f"arrive {self.name}")
        self.has_arrived = True

    def settle(self):
        assert self.state != "restored" or self.has_arrived
        if self.state == "restored":
            self.state, self.level = "awake", 0


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def cycle(memory):
    return SleepCycle(memory.parts, memory.promised)


def nothing():
    pass


def sleep(cycle, level=1, tags=TAGS):
    return cycle.sleep(level, tags, Stopwatch())


def wake(cycle, tags=TAGS, finish=nothing):
    watch = Stopwatch()
    cycle.wake(tags, finish, watch)
    return list(watch.phases)


def test_all_are_saved_before_any_is_dropped(cycle, memory):
    assert sleep(cycle) == 100
    assert memory.calls == [f"{verb} {name}" for verb in ("save", "drop") for name in SIZES]
    assert memory.states == [("asleep", 1, 0)] * 3
    assert cycle.sleeping_tags == TAGS
    assert repr(cycle) == "SleepCycle(asleep=('weights', 'kv_cache'), reserved=())"


def test_all_are_reserved_before_any_is_restored_and_settled_at_the_end(cycle, memory):
    sleep(cycle)
    memory.calls.clear()
    assert wake(cycle) == ["reserve", WEIGHTS, KV_CACHE]
    assert memory.calls == [f"{verb} {name}" for verb in ("reserve", "restore", "arrive") for name in SIZES]
    assert memory.states == [("awake", 0, 60), ("awake", 0, 30), ("awake", 0, 10)]


@pytest.mark.parametrize("name", SIZES)
def test_a_save_that_fails_leaves_everything_awake(cycle, memory, name):
    before = memory.states
    memory.failing = f"save {name}"
    with pytest.raises(OSError, match="injected"):
        sleep(cycle)
    assert memory.states == before
    assert not any(part.saved_level for part in memory.parts)
    sleep(cycle)


@pytest.mark.parametrize("error", [OSError("injected"), KeyboardInterrupt("injected"), InsufficientMemory("injected")])
@pytest.mark.parametrize("verb", ["reserve", "restore", "arrive"])
@pytest.mark.parametrize("name", SIZES)
def test_a_wake_that_fails_leaves_everything_asleep(cycle, memory, name, verb, error):
    sleep(cycle, level=2)
    memory.failing, memory.error = f"{verb} {name}", error
    with pytest.raises(type(error), match="injected"):
        wake(cycle)
    assert memory.states == [("asleep", 2, 0)] * 3
    wake(cycle)


def test_a_finish_that_fails_leaves_everything_asleep(cycle, memory):
    sleep(cycle)

    def finish():
        assert [part.state for part in memory.parts] == ["restored"] * 3
        raise ValueError("other tokens")

    with pytest.raises(ValueError, match="other tokens"):
        wake(cycle, finish=finish)
    assert memory.states == [("asleep", 1, 0)] * 3


@pytest.mark.parametrize(("neighbour", "missing"), [(1, 1), (35, 35), (99, 99), (100, 100)])
def test_what_is_missing_is_counted_over_all_parts(cycle, memory, neighbour, missing):
    sleep(cycle)
    memory.neighbour_bytes = neighbour
    memory.calls.clear()
    assert cycle.prepare(TAGS) == missing
    assert memory.calls == [], "nothing is taken, not even for a moment"
    with pytest.raises(
        InsufficientMemory, match=f"^{missing} bytes are missing on the device to wake kv_cache and wei"
    ):
        wake(cycle)
    assert memory.states == [("asleep", 1, 0)] * 3
    memory.neighbour_bytes -= missing
    assert cycle.prepare(TAGS) == 0


def test_a_device_that_refuses_what_it_says_is_free_misses_at_least_a_byte(cycle, memory):
    sleep(cycle)
    memory.failing, memory.error = "reserve swap", DeviceOutOfMemory(10, 10)
    assert cycle.prepare(TAGS) == 1


def test_what_is_prepared_is_held_until_the_wake(cycle, memory):
    sleep(cycle)
    assert cycle.prepare(TAGS) == 0
    assert memory.free_bytes == 0
    memory.calls.clear()
    assert cycle.prepare(TAGS) == 0
    assert memory.calls == []
    assert "reserved=('weights', 'kv_cache')" in repr(cycle)
    wake(cycle)
    assert memory.calls == [f"{verb} {name}" for verb in ("restore", "arrive") for name in SIZES]


def test_a_sleep_gives_what_is_prepared_back(cycle, memory):
    sleep(cycle)
    cycle.prepare(TAGS)
    sleep(cycle)
    assert (memory.free_bytes, cycle.sleeping_tags) == (100, TAGS)


def test_another_preparation_takes_the_place_of_the_first(cycle, memory):
    sleep(cycle)
    cycle.prepare((KV_CACHE,))
    assert cycle.prepare((WEIGHTS,)) == 0
    assert memory.free_bytes == 40
    cycle.prepare((KV_CACHE,))
    memory.neighbour_bytes = 20
    assert cycle.prepare(TAGS) == 20
    assert memory.free_bytes == 80


def test_tags_sleep_and_wake_apart(cycle, memory):
    sleep(cycle, tags=(KV_CACHE,))
    assert cycle.sleeping_tags == (KV_CACHE,)
    sleep(cycle, tags=(WEIGHTS,))
    assert cycle.sleeping_tags == TAGS
    assert wake(cycle, tags=(WEIGHTS,)) == ["reserve", WEIGHTS]
    assert [part.state for part in memory.parts] == ["awake", "asleep", "asleep"]


def test_a_failure_takes_back_only_what_this_call_woke(cycle, memory):
    sleep(cycle)
    wake(cycle, tags=(WEIGHTS,))
    memory.failing = "restore swap"
    with pytest.raises(OSError, match="injected"):
        wake(cycle)
    assert memory.states == [("awake", 0, 60), ("asleep", 1, 0), ("asleep", 1, 0)]


def test_a_sleep_can_become_deeper_and_not_lighter(cycle, memory):
    sleep(cycle, level=1)
    assert sleep(cycle, level=2) == 0
    sleep(cycle, level=1)
    assert memory.states == [("asleep", 2, 0)] * 3


def test_waking_what_is_awake_reserves_nothing(cycle, memory):
    assert cycle.prepare(TAGS) == 0
    assert memory.calls == []
