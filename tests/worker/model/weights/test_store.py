"""The weights' memory: where it is awake and asleep, and that every failure leaves it where it was."""

import pytest
import torch

from dormouse_worker.common.errors import WeightsDamaged
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.weights.testing import make_store
from tests.worker.model.weights.store_kit import ALL, EXTRAS, MIB, TENSORS, WHOLE, CopyEngine, SmallHost


def test_loaded_it_lies_on_the_device_and_in_host_memory(make_kit):
    kit = make_kit()
    assert kit.held == (WHOLE, WHOLE, False)
    kit.assert_awake()


def test_without_a_host_copy_only_the_device_holds_it(make_kit):
    kit = make_kit(keeps_host_copy=False)
    assert kit.held == (WHOLE, 0, False)
    kit.assert_awake()


def test_with_one_memory_there_is_no_copy(make_kit):
    kit = make_kit(CpuDevice(SmallHost()))
    assert kit.held == (WHOLE, 0, False)
    kit.assert_awake()


@pytest.mark.parametrize("keeps_host_copy", [True, False])
def test_level_1_leaves_the_copy_in_host_memory(make_kit, keeps_host_copy):
    kit = make_kit(keeps_host_copy=keeps_host_copy)
    assert kit.sleep(1) == WHOLE
    assert kit.held == (0, WHOLE, True)
    kit.wake()
    assert kit.held == (WHOLE, WHOLE if keeps_host_copy else 0, False)
    kit.assert_awake()
    assert kit.source.num_opened == 1


def test_level_1_with_one_memory_gives_nothing_back(make_kit):
    kit = make_kit(CpuDevice(SmallHost()))
    assert kit.sleep(1) == 0
    assert kit.held == (WHOLE, 0, True)
    assert kit.store.wake_bytes == 0
    kit.wake()
    kit.assert_awake()
    assert kit.source.num_opened == 1


@pytest.mark.parametrize("keeps_host_copy", [True, False])
def test_level_2_leaves_nothing_and_reads_again(make_kit, keeps_host_copy):
    kit = make_kit(keeps_host_copy=keeps_host_copy)
    assert kit.sleep(2) == WHOLE
    assert kit.held == (0, 0, True)
    assert kit.store.wake_bytes == WHOLE
    kit.wake()
    assert kit.held == (WHOLE, 0, False)
    kit.assert_awake()
    assert kit.source.num_opened == 2


def test_the_first_sleep_at_level_1_after_one_at_level_2_makes_the_host_copy_again(make_kit):
    kit = make_kit()
    kit.sleep(2)
    kit.wake()
    assert kit.sleep(1) == WHOLE
    assert kit.held == (0, WHOLE, True)
    kit.wake()
    assert kit.held == (WHOLE, WHOLE, False)
    kit.assert_awake()
    assert kit.source.num_opened == 2


def test_level_2_with_one_memory_reads_again(make_kit):
    kit = make_kit(CpuDevice(SmallHost()))
    assert kit.sleep(2) == WHOLE
    assert kit.held == (0, 0, True)
    kit.wake()
    kit.assert_awake()


@pytest.mark.parametrize("device", [FakeDevice, lambda: CpuDevice(SmallHost())])
def test_a_sleep_can_go_deeper_and_not_back_up(make_kit, device):
    kit = make_kit(device())
    kit.sleep(1)
    kit.sleep(2)
    assert kit.held == (0, 0, True)
    assert kit.sleep(1) == 0
    kit.wake()
    kit.assert_awake()
    assert kit.source.num_opened == 2
    kit.sleep(1)
    kit.wake()
    assert kit.source.num_opened == 2


def test_a_copy_made_for_a_sleep_that_was_taken_back_goes_again(make_kit):
    kit = make_kit(keeps_host_copy=False)
    kit.store.save(1)
    assert kit.store.host_copy_bytes == WHOLE
    kit.store.forget()
    assert kit.held == (WHOLE, 0, False)
    kit.assert_awake()


def test_a_copy_that_is_always_there_survives_a_sleep_that_was_taken_back(make_kit):
    kit = make_kit()
    kit.store.save(2)
    kit.store.forget()
    assert kit.held == (WHOLE, WHOLE, False)


def test_a_reservation_can_be_given_back(make_kit):
    for level in (1, 2):
        kit = make_kit()
        kit.sleep(level)
        asleep = kit.held
        kit.store.reserve()
        assert kit.store._arena.size_bytes == WHOLE
        kit.store.cancel()
        assert kit.held == asleep
        kit.wake()
        kit.assert_awake()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("keeps_host_copy", [True, False])
def test_a_wake_that_fails_later_falls_back_to_where_it_was(make_kit, level, keeps_host_copy):
    """The copy of a level 1 sleep is still there, although an awake worker would not keep it."""
    kit = make_kit(keeps_host_copy=keeps_host_copy)
    kit.sleep(level)
    asleep = kit.held
    kit.store.reserve()
    kit.store.restore()
    assert kit.store.drop() == WHOLE
    assert kit.held == asleep
    kit.wake()
    kit.assert_awake()


def test_addresses_never_change(make_kit):
    kit = make_kit()
    addresses = {name: view.data_ptr() for name, view in kit.views.items()}
    for level in (1, 2):
        kit.sleep(level)
        kit.wake()
        assert {name: kit.store.tensor(name).data_ptr() for name in ALL} == addresses


@pytest.mark.parametrize("level", [1, 2])
def test_where_a_copy_engine_copies_views_can_be_waited_for(make_kit, level):
    kit = make_kit(CopyEngine(), unit_bytes=MIB)
    kit.sleep(level)
    kit.store.reserve()
    kit.store.restore()
    assert kit.store.is_arriving
    for name, view in kit.views.items():
        kit.store.wait_for([view, torch.ones(3)])
        assert torch.equal(view, ALL[name])
    kit.store.arrive()
    kit.store.settle()
    assert not kit.store.is_arriving
    kit.assert_awake()


@pytest.mark.parametrize("level", [1, 2])
def test_what_is_still_arriving_can_be_dropped(make_kit, level):
    kit = make_kit(CopyEngine(), unit_bytes=MIB)
    kit.sleep(level)
    asleep = kit.held
    kit.store.restore()
    assert kit.store.drop() == WHOLE
    assert kit.held == asleep
    kit.store.restore()
    kit.store.arrive()
    kit.store.settle()
    kit.assert_awake()


def test_damaged_memory_is_found(make_kit):
    kit = make_kit()
    kit.views["head"][3, 3] = 77
    with pytest.raises(WeightsDamaged, match=r"^head is not what was loaded"):
        kit.store.check_integrity()


def test_the_report_says_how_much_came_how_fast():
    store, _ = make_store(FakeDevice(), TENSORS, EXTRAS)
    times = iter([10.0, 12.5])
    report = store.load("auto", clock=lambda: next(times))
    assert (report.num_bytes, report.seconds, report.path) == (store.num_bytes, 2.5, "fast")
    assert str(report) == "0.01 GB in 2.50 s, 0.00 GB/s (auto, fast)"
    store.close()


def test_contents_in_host_memory_are_those_of_the_device(make_kit):
    for options in ({}, {"keeps_host_copy": False}):
        kit = make_kit(**options)
        contents = bytearray(kit.store.num_bytes)
        for window, part in kit.store.iter_host():
            contents[window.start : window.end] = bytes(part.numpy())
        for slot in kit.store.layout.slots:
            assert contents[slot.offset : slot.offset + slot.num_bytes] == bytes(module_bytes(ALL[slot.name]))


def module_bytes(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy()
