"""Rows of images over a sleep: kept in host memory, or dropped and encoded anew. The answers are the same."""

from functools import partial

import pytest
import torch

from dormouse_worker.common.commands import TAGS, Sleep
from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.engine.sleeping_parts import SleepingParts
from dormouse_worker.engine.status import StatusTeller
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.executor.testing import FakeDeviceWorker
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.model.device.testing import FakeCudaDriver, FakeDevice
from dormouse_worker.model.testing_vision import draw_picture
from tests.worker.model.vision.test_vision_parity import families

WORKERS = {"cpu": CpuWorker, "own memory": FakeDeviceWorker}
on_each_worker = pytest.mark.parametrize("make", WORKERS.values(), ids=WORKERS)


class Sleeper:
    """A seer that sleeps, and questions about one image that have no prefix in common."""

    def __init__(self, seer, said, family):
        self.seer, self.said, self.family = seer, said, family
        self.parts = SleepingParts(seer.worker, StatusTeller(lambda _: None), ManualClock(), seer.settings)
        self.seer.worker.get_rank_statuses = tuple  # it stands for the executor too

    def ask(self, first):
        """Ask; the answer is transformers'. Return how often the encoder ran for it."""
        before, parts = self.seer.num_encoded, [[first], draw_picture(self.family, 1), [5]]
        assert self.seer.ask({f"{first}": parts}) == {f"{first}": self.said(self.family, parts)}
        return self.seer.num_encoded - before

    @property
    def rows(self):
        return self.seer.worker._allocation._runner.image_rows

    def sleep(self, level=1, tags=TAGS):
        self.parts.sleep(Sleep(level, tags), self.seer.engine)
        return self.parts._teller.status.host_copy_bytes

    def wake(self):
        assert self.parts.wake_up(TAGS, self.seer.engine)
        self.seer.engine.forget_ranks()


@pytest.fixture
def make_sleeper(make_seer, said):
    """Return a function that makes a sleeper on a worker of a kind."""

    def make_one(make, family="llava", *, keeps=True, **settings):
        return Sleeper(make_seer(family, make=make, keep_encoder_cache=keeps, **settings), said, family)

    return make_one


@families({"qwen3_vl"})
@on_each_worker
def test_the_encoder_rests_after_a_light_sleep_that_kept_rows(make_sleeper, make, family):
    sleeper = make_sleeper(make, family)
    assert sleeper.ask(3) == 1
    sleeper.sleep()
    sleeper.wake()
    assert sleeper.ask(4) == 0
    sleeper.sleep(2)
    sleeper.wake()
    assert sleeper.ask(6) == 1


@on_each_worker
def test_without_the_setting_it_runs_again(make_sleeper, make):
    sleeper = make_sleeper(make, keeps=False)
    sleeper.ask(3)
    sleeper.sleep()
    sleeper.wake()
    assert sleeper.rows == {}
    assert sleeper.ask(4) == 1


@on_each_worker
def test_kept_rows_are_counted_and_go_with_a_deeper_sleep(make_sleeper, make):
    sleeper = make_sleeper(make)
    lean = sleeper.sleep()
    sleeper.wake()
    sleeper.ask(3)
    (rows,) = sleeper.rows.values()
    assert rows.nbytes <= sleeper.sleep() - lean < rows.nbytes + (2 << 20)
    assert sleeper.sleep(2) == 0
    sleeper.wake()
    assert sleeper.ask(4) == 1


def test_where_there_is_one_memory_nothing_is_copied(make_sleeper):
    sleeper = make_sleeper(CpuWorker)
    sleeper.ask(3)
    (before,) = sleeper.rows.values()
    assert sleeper.sleep() == before.nbytes
    sleeper.wake()
    (after,) = sleeper.rows.values()
    assert after is before


def test_copies_stand_for_the_rows_until_these_are_back(make_sleeper):
    sleeper = make_sleeper(FakeDeviceWorker)
    sleeper.ask(3)
    (before,) = (rows.clone() for rows in sleeper.rows.values())
    sleeper.sleep()
    kept = sleeper.seer.worker._allocation._kept_images
    assert all(kept._arena.end_of(rows) for rows in kept._rows.values()), "what lay on the device is gone"
    sleeper.wake()
    assert sleeper.seer.worker._allocation.host_copy_bytes == 0
    (after,) = sleeper.rows.values()
    assert torch.equal(after, before)


def test_rows_for_which_host_memory_lacks_refuse_the_sleep_and_stay(make_sleeper):
    beside = FakeCudaDriver(1 << 30)
    sleeper = make_sleeper(partial(FakeDeviceWorker, device=FakeDevice(copies=beside)))
    sleeper.ask(3)
    beside.take(beside.free_bytes())
    with pytest.raises(InsufficientMemory, match=r"keeping 1 encoded images takes .* set keepEncoderCache to false"):
        sleeper.sleep()
    assert sleeper.ask(4) == 0


@pytest.mark.parametrize("number", [0, 1])
def test_a_sleep_that_fails_leaves_no_copies_and_all_rows(make_sleeper, number):
    device = FakeDevice(copies=FakeCudaDriver())
    sleeper = make_sleeper(partial(FakeDeviceWorker, device=device), keep_host_copy=False)
    sleeper.ask(3)
    used_bytes = device.copies.used_bytes
    device.fail_copy_at(number)  # of the rows, or of the first weight behind them
    with pytest.raises(RuntimeError, match="the device did not copy"):
        sleeper.sleep()
    assert device.copies.used_bytes == used_bytes
    assert sleeper.ask(4) == 0


def test_a_wake_that_fails_keeps_the_copies(make_sleeper):
    device = FakeDevice()
    sleeper = make_sleeper(partial(FakeDeviceWorker, device=device))
    sleeper.ask(3)
    kept = sleeper.sleep()
    device.memory.take(device.memory.free_bytes())
    with pytest.raises(InsufficientMemory):
        sleeper.wake()
    device.memory.neighbour_bytes = 0
    assert sleeper.sleep() == kept
    sleeper.wake()
    assert sleeper.ask(4) == 0


@on_each_worker
def test_an_order_empties_what_sleeps_and_what_is_awake(make_sleeper, make):
    sleeper = make_sleeper(make)
    sleeper.ask(3)
    kept = sleeper.sleep()
    sleeper.seer.worker.forget_images()
    assert sleeper.seer.worker._allocation.host_copy_bytes == 0 < kept
    sleeper.seer.engine.images.clear()
    sleeper.wake()
    assert sleeper.ask(4) == 1
    sleeper.seer.worker.forget_images()
    assert sleeper.rows == {}
