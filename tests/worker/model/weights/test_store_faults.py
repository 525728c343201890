"""Stores whose memory, host or source fails: what is left, and what is told."""

import pytest

from dormouse_worker.common.errors import InsufficientMemory, ModelChanged, ModelNotFound
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.testing import FakeCudaDriver, FakeDevice
from dormouse_worker.model.weights import streaming
from dormouse_worker.model.weights.testing import make_store
from tests.worker.model.weights.store_kit import EXTRAS, MIB, TENSORS, WHOLE, CopyEngine, SmallHost


@pytest.mark.parametrize("verb", ["create", "map"])
@pytest.mark.parametrize("index", range(WHOLE // (2 * MIB)))
@pytest.mark.parametrize("level", [1, 2])
def test_a_chunk_that_is_not_to_be_had_leaves_it_asleep(make_kit, verb, index, level):
    kit = make_kit()
    kit.sleep(level)
    asleep = kit.held
    kit.device.memory.fail_at(verb, index)
    with pytest.raises((DeviceOutOfMemory, InsufficientMemory)):
        kit.wake()
    assert kit.held == asleep
    assert kit.device.memory.used_bytes == 0
    kit.wake()
    kit.assert_awake()


def test_there_is_no_chunk_more_than_those_that_failed(make_kit):
    kit = make_kit()
    kit.sleep(1)
    kit.device.memory.fail_at("create", WHOLE // (2 * MIB))
    kit.wake()
    kit.assert_awake()


@pytest.mark.parametrize("verb", ["create", "map"])
@pytest.mark.parametrize("index", range(WHOLE // (2 * MIB)))
def test_a_load_that_fails_holds_nothing(verb, index):
    device = FakeDevice()
    device.memory.fail_at(verb, index)
    store, _ = make_store(device, TENSORS, EXTRAS)
    with pytest.raises(InsufficientMemory, match=r"the weights take .* on the device, .* are free"):
        store.load("auto")
    assert (store._arena.size_bytes, store.host_copy_bytes) == (0, 0)
    store.load("auto")
    store.close()


def test_a_device_that_is_too_small_is_told_with_the_numbers():
    store, _ = make_store(FakeDevice(FakeCudaDriver(4 * MIB)), TENSORS)
    with pytest.raises(InsufficientMemory, match=r"take 8\.0 MiB on the device, 4\.0 MiB are free"):
        store.load("auto")
    store.close()


def test_host_memory_that_is_too_small_for_the_copy_is_told_with_the_knob():
    store, _ = make_store(FakeDevice(host=SmallHost(4 * MIB)), TENSORS)
    with pytest.raises(InsufficientMemory, match=r"takes 8\.0 MiB of host memory, 4\.0 MiB .* keepHostCopy: false"):
        store.load("auto")
    assert store._arena.size_bytes == 0
    store.close()


def test_level_1_is_refused_where_the_copy_does_not_fit_and_level_2_is_not(make_kit):
    host = SmallHost()
    kit = make_kit(FakeDevice(host=host), keeps_host_copy=False)
    host.left_bytes = 4 * MIB
    with pytest.raises(InsufficientMemory, match=r"takes 8\.0 MiB of host memory, 4\.0 MiB are free; .* use level 2"):
        kit.store.save(1)
    assert kit.held == (WHOLE, 0, False)
    kit.assert_awake()
    kit.sleep(2)
    host.left_bytes = 1 << 40
    kit.wake()
    kit.assert_awake()


def test_a_wake_needs_no_room_for_a_copy_but_for_what_is_read(make_kit, monkeypatch):
    monkeypatch.setattr(streaming, "_MOST_THREADS", 2)
    host = SmallHost()
    kit = make_kit(FakeDevice(host=host))
    kit.sleep(2)
    host.left_bytes = MIB
    with pytest.raises(InsufficientMemory, match=r"reading the weights takes 4\.0 MiB of host memory, 1\.0 MiB are"):
        kit.wake()
    assert kit.held == (0, 0, True)
    assert kit.device.memory.used_bytes == 0
    host.left_bytes = 4 * MIB
    kit.wake()
    kit.assert_awake()


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("device", [FakeDevice, lambda: CpuDevice(SmallHost())])
def test_weights_that_changed_are_named_and_it_stays_asleep(make_kit, device, name):
    kit = make_kit(device())
    kit.sleep(2)
    original = kit.source.tensors[name]
    changed = original.clone()
    changed.view(-1)[-1] += 1
    kit.source.tensors[name] = changed
    with pytest.raises(ModelChanged, match=f"^{name} is not what was loaded"):
        kit.wake()
    assert kit.held == (0, 0, True)
    kit.source.tensors[name] = original
    kit.wake()
    kit.assert_awake()


@pytest.mark.parametrize("keeps_host_copy", [True, False])
def test_a_source_that_fails_leaves_it_asleep(make_kit, keeps_host_copy):
    kit = make_kit(keeps_host_copy=keeps_host_copy)
    kit.sleep(2)
    kit.source.failure = ModelNotFound("gone")
    with pytest.raises(ModelNotFound):
        kit.wake()
    assert kit.held == (0, 0, True)
    kit.source.failure = None
    kit.wake()
    kit.assert_awake()


def test_a_load_that_fails_while_it_arrives_holds_nothing():
    store, source = make_store(CopyEngine(), TENSORS)
    source.failure = ModelNotFound("gone")
    with pytest.raises(ModelNotFound, match="gone"):
        store.load("auto")
    assert (store._arena.size_bytes, store.host_copy_bytes, store.is_asleep) == (0, 0, True)
    source.failure = None
    store.load("auto")
    store.close()


class NoRanges(HostDriver):
    """Host memory without a single free address range."""

    def reserve(self, num_bytes):
        raise OSError(12, f"no room for {num_bytes} bytes")


def test_a_range_that_is_not_to_be_had_leaves_no_other_behind():
    device = FakeDevice()
    device.copies = NoRanges(lambda: 1 << 40)
    ranges = []
    device.memory.release = lambda _, num_bytes: ranges.append(num_bytes)
    with pytest.raises(OSError, match="no room for"):
        make_store(device, TENSORS)
    assert ranges == [WHOLE]
