"""Which bytes on a shared device are ours, while neighbours come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model.device.accounting import (
    DEVICE_FREE_MEMORY,
    MAX_MAKINGS,
    NVML,
    Change,
    DeviceAccount,
    measure_around,
    read_quietly,
)
from dormouse_worker.model.device.testing import FakeCudaDriver

MIB = 1 << 20
TOTAL = 1024 * MIB
COST = 100 * MIB


class SharedDevice:
    """A fake device, a thing of ours on it that no arena counts, and a neighbour that moves at chosen readings.

    `moves` are the neighbour's, one after each reading; `while_making` those in the middle of each making.
    """

    def __init__(self, moves=(), while_making=()):
        self.driver = FakeCudaDriver(TOTAL)
        self.driver.take(500 * MIB)
        self._moves, self._while_making = iter(moves), iter(while_making)
        self.num_made = self.num_makings = 0

    def read(self):
        free_bytes = self.driver.free_bytes() - COST * self.num_made
        self.driver.take(next(self._moves, 0))
        return free_bytes

    def make(self):
        self.num_made += 1
        self.num_makings += 1
        self.driver.take(next(self._while_making, 0))

    def unmake(self):
        self.num_made -= 1

    def measure(self, *, can_unmake=True):
        change = measure_around(self.read, self.make, self.unmake if can_unmake else None)
        assert self.num_made == 1
        return change


def test_without_neighbours_the_change_is_the_cost():
    device = SharedDevice()
    assert device.measure() == Change(COST, is_certain=True)
    assert device.num_makings == 2
    assert SharedDevice().measure(can_unmake=False) == Change(COST, is_certain=True)


@pytest.mark.parametrize("move", [MIB, -MIB, 300 * MIB, -300 * MIB])
@pytest.mark.parametrize("reading", range(4))
def test_a_neighbour_that_moves_between_readings_changes_nothing(move, reading):
    device = SharedDevice(moves=[0] * reading + [move])
    assert device.measure() == Change(COST, is_certain=True)


@pytest.mark.parametrize("move", [MIB, -MIB, 300 * MIB, -300 * MIB])
@pytest.mark.parametrize(("reading", "is_certain"), [(0, True), (2, False), (3, True)])
def test_what_is_made_once_is_measured_next_to_the_call(move, reading, is_certain):
    """After reading 1 it would have moved in the middle of the call, where nothing tells it from us."""
    device = SharedDevice(moves=[0] * reading + [move])
    assert device.measure(can_unmake=False) == Change(COST, is_certain=is_certain)


@pytest.mark.parametrize("moves", [[300 * MIB], [-300 * MIB], [300 * MIB, -200 * MIB], [1, 2, 3]])
def test_a_neighbour_that_moves_while_it_is_made_is_found_out_by_making_it_again(moves):
    device = SharedDevice(while_making=moves)
    assert device.measure() == Change(COST, is_certain=True)
    assert device.num_makings == len(moves) + 2


def test_what_costs_less_than_nothing_is_not_certain():
    change = SharedDevice(while_making=[-300 * MIB]).measure(can_unmake=False)
    assert change == Change(COST - 300 * MIB, is_certain=False)


def test_a_neighbour_that_never_rests_ends_in_a_guess_that_says_so():
    device = SharedDevice(moves=[MIB] * 500)
    change = device.measure()
    assert not change.is_certain
    assert device.num_makings == MAX_MAKINGS
    assert read_quietly(SharedDevice(moves=[MIB] * 500).read)[1] is False


@given(st.lists(st.integers(-100, 100).map(lambda mib: mib * MIB), max_size=3))
def test_three_moves_of_a_neighbour_at_any_reading_are_outlasted(moves):
    assert SharedDevice(moves=moves).measure() == Change(COST, is_certain=True)


def make_account(driver, torch_bytes=lambda: 0, nvml=lambda: None):
    return DeviceAccount(driver, torch_bytes, nvml)


def test_own_bytes_are_arenas_torch_and_parts_whatever_neighbours_hold():
    driver = FakeCudaDriver(TOTAL)
    account = make_account(driver, lambda: 30 * MIB)
    driver.create(64 * MIB)
    account.add("context", Change(10 * MIB, is_certain=True))
    for neighbour_bytes in (0, 200 * MIB):
        driver.neighbour_bytes = 40 * MIB + neighbour_bytes  # 40 = torch and the context, which the fake does not know
        snapshot = account.snapshot()
        assert (snapshot.own_bytes, snapshot.free_bytes) == (104 * MIB, TOTAL - 104 * MIB - neighbour_bytes)
    assert (snapshot.total_bytes, snapshot.measured_by) == (TOTAL, DEVICE_FREE_MEMORY)


def test_what_arenas_and_torch_take_meanwhile_is_not_counted_twice():
    driver = FakeCudaDriver(TOTAL)
    torch_bytes = 0

    def make():
        nonlocal torch_bytes
        driver.create(64 * MIB)
        torch_bytes = 32 * MIB
        driver.take(32 * MIB + 7 * MIB)  # torch's, and what is to be found

    account = make_account(driver, lambda: torch_bytes)
    assert account.measure("graphs", make) == Change(7 * MIB, is_certain=True)
    assert repr(account) == "DeviceAccount(graphs 7340032)"


@pytest.mark.parametrize("neighbour", [300 * MIB, -300 * MIB])
def test_a_once_only_part_that_costs_what_it_can_not_cost_is_guessed(neighbour, caplog):
    driver = FakeCudaDriver(TOTAL)
    driver.take(400 * MIB)
    change = make_account(driver).measure("libraries", lambda: driver.take(neighbour), guess_bytes=5, max_bytes=MIB)
    assert change == Change(5, is_certain=False)
    assert "libraries: taken as 5 bytes; a neighbour moved meanwhile" in caplog.text


@pytest.mark.parametrize(("shown", "is_told"), [(100 * MIB, False), (400 * MIB, True)])
def test_nvml_is_believed_where_it_shows_us_and_contradictions_are_told(shown, is_told, caplog):
    driver = FakeCudaDriver(TOTAL)
    driver.create(64 * MIB)
    account = make_account(driver, nvml=lambda: shown)
    account.add("context", Change(30 * MIB, is_certain=True))
    snapshot = account.snapshot()
    assert (snapshot.own_bytes, snapshot.measured_by) == (shown, NVML)
    assert ("NVML counts" in caplog.text) is is_told


def test_where_nvml_shows_nothing_the_sum_of_the_parts_counts():
    account = make_account(FakeCudaDriver(TOTAL), nvml=lambda: None)
    account.add("context", Change(30 * MIB, is_certain=True))
    assert (account.snapshot().other_bytes, account.snapshot().measured_by) == (30 * MIB, DEVICE_FREE_MEMORY)
