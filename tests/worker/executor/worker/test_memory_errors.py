"""Whoever notices a lack of memory, it has one name; other errors keep theirs."""

import errno

import pytest
import torch

from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.executor.worker.memory_errors import memory_errors
from dormouse_worker.model.device.driver import DeviceOutOfMemory


@pytest.mark.parametrize(
    "error",
    [
        DeviceOutOfMemory(30, 20),
        MemoryError("none left"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        OSError(errno.ENOMEM, "mmap"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lack_of_memory_is_insufficient_memory(error):
    with (
        pytest.raises(InsufficientMemory, match="the cache is too large: ") as caught,
        memory_errors("the cache is too large"),
    ):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [OSError(errno.EIO, "read"), RuntimeError("shapes differ"), InsufficientMemory("it")])
def test_any_other_error_passes(error):
    with pytest.raises(type(error)) as caught, memory_errors("the cache is too large"):
        raise error
    assert caught.value is error


def test_torch_says_itself_what_we_look_for():
    with pytest.raises(InsufficientMemory), memory_errors("too large"):
        torch.empty(1 << 60, dtype=torch.uint8)
