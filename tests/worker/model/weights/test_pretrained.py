"""Weights that transformers converts: in memory once, not beside themselves."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dormouse_worker.common.errors import InsufficientMemory, ModelChanged
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.weights.layout import plan_layout
from dormouse_worker.model.weights.pretrained import PretrainedSource
from dormouse_worker.model.weights.skeleton import iter_tensors


class Small(nn.Module):
    """Two tensors, the second tied under a third name."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.arange(8.0) + at, requires_grad=False) for at in (0, 8))
        self.third = self.second


def read_all(read, slot):
    target = torch.empty(slot.num_bytes, dtype=torch.uint8)
    for start in range(0, slot.num_bytes, 16):
        read(slot, start, start + 16, target[start : start + 16])
    return target.view(torch.float32)


@pytest.fixture
def slots():
    return plan_layout(iter_tensors(Small())).slots


def test_each_tensor_is_let_go_when_its_last_byte_was_read(slots):
    module = Small()
    source = PretrainedSource(Small, iter_tensors(module))
    assert source.held_bytes == 64
    for parameter in (module.first, module.second):
        parameter.data = torch.zeros(())
    del module
    with source.open() as read:
        assert source.held_bytes == 0
        assert torch.equal(read_all(read, slots[0]), torch.arange(8.0))
        with pytest.raises(ModelChanged, match="first"):
            read_all(read, slots[0])
        assert torch.equal(read_all(read, slots[1]), torch.arange(8.0, 16.0))


def test_what_many_shares_read_is_kept_until_all_have_read(slots):
    source = PretrainedSource(Small, iter_tensors(Small()), reads_once=False)
    assert source.held_bytes == 0
    with source.open() as read:
        assert torch.equal(read_all(read, slots[0]), read_all(read, slots[0]))


def test_the_next_time_the_module_is_loaded_again_and_may_not_have_changed(slots):
    made = []

    def again():
        made.append(1)
        module = Small()
        if len(made) > 1:
            module.first = nn.Parameter(torch.zeros(4), requires_grad=False)
        return module

    source = PretrainedSource(again, iter_tensors(Small()))
    with source.open():
        assert not made
    with source.open() as read:
        assert torch.equal(read_all(read, slots[0]), torch.arange(8.0))
    with source.open() as read, pytest.raises(ModelChanged, match=r"first was torch.float32 \[8\]"):
        read_all(read, slots[0])


def load_with(directory, available_bytes):
    host = SimpleNamespace(available_bytes=lambda: available_bytes)
    return load(EngineSettings(model=str(directory), block_size=4), CpuDevice(host))


def test_memory_that_goes_back_while_the_weights_are_read_counts_as_free(tiny_model):
    """The module is in memory already when the arena is asked for."""
    model = load_with(tiny_model("mixtral"), available_bytes=2 << 20)
    size = model.weights.num_bytes
    model.weights.close()
    load_with(tiny_model("mixtral"), available_bytes=(2 << 20) - size // 2).weights.close()
    with pytest.raises(InsufficientMemory):
        load_with(tiny_model("llama"), available_bytes=(2 << 20) - 4096)


def test_a_device_with_memory_of_its_own_gets_the_host_copy_with_the_first_sleep(tiny_model):
    """While transformers' tensors are there, a copy beside them would be the second."""
    for architecture, has_copy in (("llama", True), ("mixtral", False)):
        model = load(EngineSettings(model=str(tiny_model(architecture)), block_size=4), FakeDevice())
        assert bool(model.weights.host_copy_bytes) is has_copy
        model.weights.save(1)
        assert model.weights.host_copy_bytes
        model.weights.close()
