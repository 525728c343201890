"""A GPU that is not there: which one a process gets, and what it counts."""

import pytest
import torch

from dormouse_worker.common.errors import InsufficientMemory, InvalidSettings, WrongDevice
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.stand_in import DEVICES_VARIABLE, has_gpu, has_stand_in
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.ledger_file import offer_device, read_usage
from dormouse_worker.model.device.stand_in import CONTEXT_BYTES, SHARED_BYTES, choose_device, copy_bytes, open_stand_in
from dormouse_worker.model.memory.meters import make_meter

MIB = 1 << 20
TOTAL = 64 * MIB
SETTINGS = EngineSettings(model="m", device="cuda")


@pytest.fixture
def root(tmp_path):
    for name in ("gpu-1", "gpu-0"):
        offer_device(tmp_path / name, TOTAL)
    (tmp_path / "notes").mkdir()
    return tmp_path


@pytest.fixture
def device(root):
    device = open_stand_in(Host(), environ={DEVICES_VARIABLE: str(root)}, budget_bytes=40 * MIB)
    yield device
    device.memory.close()
    assert read_usage(root / device.name).books.rows == {}


@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        (SETTINGS, {DEVICES_VARIABLE: "/devices"}, (True, False)),
        (SETTINGS, {DEVICES_VARIABLE: ""}, (False, True)),
        (SETTINGS, {}, (False, True)),
        (EngineSettings(model="m", device="cpu"), {DEVICES_VARIABLE: "/devices"}, (False, False)),
    ],
)
def test_cuda_is_a_stand_in_where_the_environment_names_some(settings, environ, expected):
    assert (has_stand_in(settings, environ), has_gpu(settings, environ)) == expected


@pytest.mark.parametrize(
    ("wanted", "index", "name"),
    [
        ("", 0, "gpu-0"),
        ("", 1, "gpu-1"),
        ("gpu-1", 0, "gpu-1"),
        ("gpu.example.com/node/gpu-1", 0, "gpu-1"),
        ("gpu.example.com/node/gpu-1, gpu-0", 0, "gpu-1"),
        ("gpu.example.com/node/gpu-1, gpu-0", 1, "gpu-0"),
    ],
)
def test_a_device_is_had_by_its_name_or_its_place(root, wanted, index, name):
    assert choose_device(root, wanted, index) == name


@pytest.mark.parametrize(
    ("wanted", "index", "error", "words"),
    [
        ("", 2, InvalidSettings, "3 devices are wanted; .* has gpu-0, gpu-1"),
        ("gpu-1", 1, InvalidSettings, "2 devices are wanted of 'gpu-1'; .* has gpu-0, gpu-1"),
        ("gpu-7", 0, WrongDevice, "'gpu-7' is wanted; .* has gpu-0, gpu-1"),
        ("..", 0, WrongDevice, "has gpu-0, gpu-1"),
        ("notes", 0, WrongDevice, "has gpu-0, gpu-1"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(root, wanted, index, error, words):
    with pytest.raises(error, match=words):
        choose_device(root, wanted, index)


def test_a_folder_without_devices_says_so(tmp_path):
    with pytest.raises(InvalidSettings, match="has none"):
        choose_device(tmp_path, "", 0)


def test_no_room_for_a_context_is_a_lack_of_memory(tmp_path):
    offer_device(tmp_path / "gpu-0", CONTEXT_BYTES - 1)
    with pytest.raises(InsufficientMemory, match="gpu-0 has no room for a context"):
        open_stand_in(Host(), environ={DEVICES_VARIABLE: str(tmp_path)})


def test_what_is_counted_is_what_the_books_say(device, root):
    meter = make_meter(device, Host(), SETTINGS, device.memory.own_bytes)
    assert meter.limit().total_bytes == TOTAL
    chunk = device.memory.create(8 * MIB)
    device.memory.expect_activations(2 * MIB)
    device.memory.take_activations()
    device.memory.take_activations()
    assert meter.own_bytes() == CONTEXT_BYTES + 10 * MIB == read_usage(root / "gpu-0").books.used_bytes
    assert meter.free_bytes() == TOTAL - CONTEXT_BYTES - 10 * MIB
    meter.release_unused()
    assert meter.own_bytes() == CONTEXT_BYTES + 8 * MIB
    device.memory.destroy(chunk)
    assert meter.rest_bytes() == CONTEXT_BYTES


def test_activations_without_room_are_not_held(device):
    device.memory.expect_activations(TOTAL)
    with pytest.raises(DeviceOutOfMemory):
        device.memory.take_activations()
    assert device.memory.activation_bytes == 0


def test_a_grants_budget_stands_in_the_books(device, root):
    device.memory.destroy(device.memory.create(30 * MIB))
    assert read_usage(root / "gpu-0").marks.over_budget_bytes == (30 + 16 - 40) * MIB


@pytest.mark.parametrize("num_bytes", [1, SHARED_BYTES])
def test_bytes_are_copied_whatever_their_number(num_bytes):
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    copy_bytes(target, source)
    assert torch.equal(source, target)
