"""Sums and gathered rows of ranks that are processes of one pod: through memory that they share, not through sockets.

The first rank makes the memory and leaves at the store where it is, the others open it there, and all tell each other
whether they could: either all use it, or none.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import Array, addressof, c_char, c_int32
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from dormouse_worker.common.layout import Layout
from dormouse_worker.model.scratch import Floats
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels, Missing

TOKEN_BYTES = 16

logger = logging.getLogger(__name__)


class Store(Protocol):
    """Where the ranks of a group leave each other words; a part of torch's."""

    def set(self, key: str, value: str) -> None:
        """Leave a word."""

    def get(self, key: str) -> bytes:
        """Return it, waiting until it is there. Raises RuntimeError in the end."""


class SharedStage:
    """Owns this rank's view of the memory. For float32; all ranks must call alike, in one order.

    Every method raises TimeoutError if another rank ends or does not come; only `close` may follow then.
    """

    def __init__(self, kernels: Kernels, memory: mmap.mmap, stage: abi.Stage, held: ExitStack) -> None:
        """`stage` says where this memory lies; `held` lets go of its descriptors."""
        self._kernels, self._memory, self._stage, self._held = kernels, memory, stage, held
        self._gathered: Floats = np.empty(0, dtype=np.float32)

    def __repr__(self) -> str:
        return f"SharedStage(rank {self._stage.rank} of {self._stage.num_ranks})"

    def sum_up(self, tensor: torch.Tensor) -> None:
        """Add the other ranks' numbers to a dense tensor's, in place."""
        self._kernels.sum_up(self._stage, tensor.data_ptr(), tensor.numel())

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the ranks' dense rows [..., C] side by side, [..., T · C], on the first rank; on others their own.

        It holds until the next call.
        """
        *leading, columns = tensor.shape
        num_rows = prod(leading)
        if self._stage.rank != 0:
            self._kernels.gather(self._stage, tensor.data_ptr(), num_rows, columns, 0)
            return tensor
        count = tensor.numel() * self._stage.num_ranks
        if count > len(self._gathered):
            self._gathered = np.empty(count, dtype=np.float32)
        gathered = torch.from_numpy(self._gathered[:count]).view(*leading, -1)
        self._kernels.gather(self._stage, tensor.data_ptr(), num_rows, columns, gathered.data_ptr())
        return gathered

    def close(self) -> None:
        """Let go of the other processes' descriptors, also a second time. The memory goes with this object."""
        for i in range(self._stage.num_ranks - 1):
            self._stage.others[i] = -1  # a call that is under way asks for nobody
        self._held.close()


def share(
    layout: Layout,
    store: Store,
    sum_up: Callable[[torch.Tensor], torch.Tensor],
    timeout_s: float,
    kernels: Kernels | Missing,
) -> SharedStage | None:
    """Return the memory that this rank shares with its stage; None where one of them cannot.

    Until then they have another way to `sum_up`. Raises RuntimeError as the store does.
    """
    num_bytes = 0 if isinstance(kernels, Missing) else kernels.shared_bytes(layout.tensor)
    with ExitStack() as held, _memory_of(layout, store, num_bytes) as memory:
        others = _find_others(layout, store, held)
        is_ready = not (memory is None or others is None or isinstance(kernels, Missing))
        num_without = sum_up(torch.tensor([float(not is_ready)])).item()
        if num_without or memory is None or others is None or isinstance(kernels, Missing):
            logger.warning("%d of %d ranks cannot share memory: sums are slower", num_without, layout.tensor)
            return None
        logger.info("%d ranks add up in memory that they share", layout.tensor)
        address = addressof(c_char.from_buffer(memory))
        stage = abi.Stage(address, layout.tensor_rank, layout.tensor, int(timeout_s * 1000), others)
        return SharedStage(kernels, memory, stage, held.pop_all())


@contextmanager
def _memory_of(layout: Layout, store: Store, num_bytes: int) -> Iterator[mmap.mmap | None]:
    """Make the stage's memory, zeros, to be opened by the others while the block lasts, or open it."""
    key = f"memory of stage {layout.stage}"
    if layout.tensor_rank:
        yield _open(store.get(key).decode(), num_bytes)
        return
    token = secrets.token_bytes(TOKEN_BYTES)
    with ExitStack() as held:
        try:
            descriptor = os.memfd_create("dormouse-stage")
            held.callback(os.close, descriptor)
            os.truncate(descriptor, num_bytes + TOKEN_BYTES)
            memory = mmap.mmap(descriptor, num_bytes + TOKEN_BYTES)
        except OSError as error:
            logger.warning("no memory to share: %s", error)
            store.set(key, "")
            yield None
            return
        memory[num_bytes:] = token
        store.set(key, f"/proc/{os.getpid()}/fd/{descriptor} {token.hex()}")
        yield memory


def _open(where: str, num_bytes: int) -> mmap.mmap | None:
    """Return the memory, if it is this: in another pod other processes have the same numbers."""
    path, _, token = where.partition(" ")
    try:
        with Path(path).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), num_bytes + TOKEN_BYTES)
    except (OSError, ValueError) as error:  # ValueError: there is less
        logger.warning("the memory of the stage's first rank, %s, cannot be opened: %s", path, error)
        return None
    return memory if memory[num_bytes:] == bytes.fromhex(token) else None


def _find_others(layout: Layout, store: Store, held: ExitStack) -> Array[c_int32] | None:
    """Return descriptors of the other ranks' processes."""
    store.set(_process(layout.rank), str(os.getpid()))
    first = layout.stage * layout.tensor
    ranks = [rank for rank in range(first, first + layout.tensor) if rank != layout.rank]
    found = []
    try:
        for rank in ranks:
            found.append(os.pidfd_open(int(store.get(_process(rank)))))
            held.callback(os.close, found[-1])
    except OSError as error:
        logger.warning("the other ranks' processes cannot be watched: %s", error)
        return None
    return (c_int32 * len(found))(*found)


def _process(rank: int) -> str:
    return f"process of rank {rank}"
