"""The worker on a stand-in device: whose device it takes, and within which budget."""

import pytest

from dormouse_worker.common.errors import WrongDevice
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.stand_in import DEVICES_VARIABLE
from dormouse_worker.executor.worker.stand_in_worker import StandInWorker
from dormouse_worker.model.device.ledger_file import offer_device, read_usage
from dormouse_worker.model.device.stand_in import CONTEXT_BYTES

MIB = 1 << 20


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name in ("gpu-0", "gpu-1"):
        offer_device(tmp_path / name, 64 * MIB)
    monkeypatch.setenv(DEVICES_VARIABLE, str(tmp_path))
    return tmp_path


def make_worker(rank=0, **fields):
    return StandInWorker(EngineSettings(model="m", device="cuda", **fields), rank)


def test_the_device_and_the_budget_are_those_of_the_settings(root):
    device = make_worker(
        expected_device="gpu.dormouse.dev/node-1/gpu-1", device_memory_budget_bytes=20 * MIB
    ).make_device()
    assert device.name == "gpu-1"
    device.memory.destroy(device.memory.create(5 * MIB))
    usage = read_usage(root / "gpu-1")
    assert usage.marks.over_budget_bytes == CONTEXT_BYTES + 5 * MIB - 20 * MIB
    device.memory.close()


@pytest.mark.usefixtures("root")
def test_each_rank_of_a_tensor_parallel_group_has_its_own_of_the_granted():
    fields = {"tensor_parallel_size": 2, "expected_device": "gpu-1, gpu-0"}
    devices = [make_worker(rank, **fields).make_device() for rank in (0, 1)]
    assert [device.name for device in devices] == ["gpu-1", "gpu-0"]
    for device in devices:
        device.memory.close()


def test_another_device_than_the_granted_one_is_not_touched(root):
    with pytest.raises(WrongDevice, match=r"'gpu-7' is wanted; .* has gpu-0, gpu-1"):
        make_worker(expected_device="gpu-7").make_device()
    assert all(read_usage(root / name).books.rows == {} for name in ("gpu-0", "gpu-1"))
