"""The weights' memory: where it is awake and asleep, and that every failure leaves it where it was."""

import pytest
import torch

from dormouse_worker.common.errors import InsufficientMemory, ModelChanged, ModelNotFound, WeightsDamaged
from dormouse_worker.common.host import Host
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.testing import FakeCudaDriver, FakeDevice
from dormouse_worker.model.weights import streaming
from dormouse_worker.model.weights.testing import make_store

MIB = 1 << 20
TENSORS = {
    "embedding": torch.randn(1100, 1500),  # 6.6 MB: over several windows, and not a whole number of blocks
    "norm": torch.randn(1500),
    "scale": torch.randn(()),
    "steps": torch.arange(7),
    "head": torch.randn(300, 1500).bfloat16(),
}
EXTRAS = {"inv_freq": torch.randn(32)}
ALL = {**TENSORS, **EXTRAS}


class SmallHost(Host):
    """A host with as much memory left as the test says."""

    def __init__(self, left_bytes=1 << 40):
        super().__init__()
        self.left_bytes = left_bytes

    def available_bytes(self):
        return self.left_bytes


class Kit:
    """A loaded store, its device and views of all tensors, by whose addresses a module would compute."""

    def __init__(self, device, **options):
        self.device = device
        self.store, self.source = make_store(device, TENSORS, EXTRAS, **options)
        self.store.load("auto")
        self.views = {name: self.store.tensor(name) for name in ALL}

    def sleep(self, level):
        self.store.save(level)
        return self.store.drop()

    def wake(self):
        self.store.reserve()
        self.store.restore()
        self.store.settle()

    def assert_awake(self):
        assert not self.store.is_asleep
        assert all(torch.equal(self.views[name], tensor) for name, tensor in ALL.items())
        self.store.check_integrity()

    @property
    def held(self):
        """Device bytes, host copy bytes, and whether it is asleep."""
        return self.store._arena.size_bytes, self.store.host_copy_bytes, self.store.is_asleep


@pytest.fixture
def make_kit():
    """Return a function (device, options) → kit, all closed in the end."""
    kits = []

    def make(device=None, **options):
        kits.append(Kit(device or FakeDevice(), **options))
        return kits[-1]

    yield make
    for kit in kits:
        kit.store.close()
        driver = kit.device.memory
        assert getattr(driver, "used_bytes", 0) == 0
        assert "0 chunks" in repr(kit.device.copies or driver)


WHOLE = 8 * MIB  # what the tensors take in whole pages


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


def test_addresses_never_change(make_kit):
    kit = make_kit()
    addresses = {name: view.data_ptr() for name, view in kit.views.items()}
    for level in (1, 2):
        kit.sleep(level)
        kit.wake()
        assert {name: kit.store.tensor(name).data_ptr() for name in ALL} == addresses


class CopyEngine(FakeDevice):
    """Copies beside whoever asked for it."""

    has_copy_engine = True


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


def test_a_load_that_fails_while_it_arrives_holds_nothing():
    store, source = make_store(CopyEngine(), TENSORS)
    source.failure = ModelNotFound("gone")
    with pytest.raises(ModelNotFound, match="gone"):
        store.load("auto")
    assert (store._arena.size_bytes, store.host_copy_bytes, store.is_asleep) == (0, 0, True)
    source.failure = None
    store.load("auto")
    store.close()


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
