"""The group over torch.distributed: gloo between CPUs, NCCL between GPUs. The only file that knows its process groups.

On CPUs the sums go through memory that the ranks of a stage share, see `shared_stage`.

T = 2, P = 2        stage 0: ranks 0, 1       stage 1: ranks 2, 3        sums within a stage
                    line 0: ranks 0 -> 2      line 1: ranks 1 -> 3       hidden states along a line
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from dormouse_worker.common.errors import RankLost
from dormouse_worker.common.layout import Layout
from dormouse_worker.model.parallel.shared_stage import SharedStage, share
from dormouse_worker.native.library import load_kernels

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
PATIENCE_S = 600.0  # for a rank that loads slower than the others; one that ends is noticed at once


class TorchCommunicator:
    """Implements `Communicator`. Owns the process groups, and the hidden states that are still on their way."""

    def __init__(self, layout: Layout, store: Any, device: torch.device, timeout_s: float) -> None:
        """Connect to all ranks, which meet at the store. Raises RankLost; nothing is held then.

        Every call must be answered within `timeout_s` seconds.
        """
        self.layout = layout
        self._device, self._timeout_s = device, timeout_s
        self._under_way: deque[tuple[Any, torch.Tensor]] = deque()
        self._stage: Any = None
        self._line: Any = None
        self._control: Any = None  # between CPUs
        self._shared: SharedStage | None = None
        timeout = timedelta(seconds=timeout_s)
        with self._lost("connecting"):
            distributed.init_process_group(
                BACKENDS[device.type], store=store, rank=layout.rank, world_size=layout.world_size, timeout=timeout
            )
            try:
                self._stage, self._line = self._make_groups(timeout)
                self._control = distributed.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_S))
                self._warm_up()
                if device.type == "cpu" and layout.tensor > 1:
                    self._shared = share(layout, store, self.all_reduce, timeout_s, load_kernels())
                self.barrier()
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        return f"TorchCommunicator({self.layout}, {BACKENDS[self._device.type]}, {len(self._under_way)} under way)"

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        if self.layout.tensor > 1 and tensor.numel():
            tensor = tensor.contiguous()
            with self._lost("all_reduce"):
                if self._shared is not None and tensor.dtype == torch.float32:
                    self._shared.sum_up(tensor)
                else:
                    distributed.all_reduce(tensor, group=self._stage)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        if self.layout.tensor == 1 or not tensor.numel():
            return tensor.repeat(*[1] * (tensor.dim() - 1), self.layout.tensor)
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.layout.tensor)]
        with self._lost("all_gather"):
            distributed.all_gather(parts, tensor.contiguous(), group=self._stage)
        return torch.cat(parts, -1)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        if self._shared is None or rows.dtype != torch.float32 or not rows.numel():
            return self.all_gather(rows)
        with self._lost("gather"):
            return self._shared.gather(rows.contiguous())

    def send(self, hidden: torch.Tensor) -> None:
        """See `Communicator`. As many may be under way as there are stages; then the oldest is waited for."""
        to = self.layout.rank + self.layout.tensor
        with self._lost(f"sending to rank {to}"):
            while len(self._under_way) >= self.layout.pipeline:
                self._under_way.popleft()[0].wait()
            hidden = hidden.contiguous()
            self._under_way.append((distributed.isend(hidden, to, group=self._line), hidden))

    def receive(self, into: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        origin = self.layout.rank - self.layout.tensor
        with self._lost(f"receiving from rank {origin}"):
            distributed.recv(into, origin, group=self._line)
        return into

    def agree(self, *, is_ready: bool) -> list[int]:
        """See `Communicator`. Between CPUs, whatever the device is."""
        answers = [torch.zeros(1) for _ in range(self.layout.world_size)]
        with self._lost("agreeing"):
            distributed.all_gather(answers, torch.tensor([float(is_ready)]), group=self._control)
        return [rank for rank, answer in enumerate(answers) if not answer.item()]

    def barrier(self) -> None:
        """See `Communicator`."""
        self.agree(is_ready=True)

    def close(self) -> None:
        """See `Communicator`."""
        self._under_way.clear()
        if self._shared is not None:
            self._shared.close()
        self._stage = self._line = self._control = None  # else they would die in a garbage collection, which hangs
        if distributed.is_initialized():
            with contextlib.suppress(RuntimeError):  # somebody else is gone already
                distributed.destroy_process_group()

    def _make_groups(self, timeout: timedelta) -> tuple[Any, Any]:
        """Return the groups of this rank's stage and line. All ranks make all groups, in the same order."""
        tensor, pipeline = self.layout.tensor, self.layout.pipeline
        stages = [[stage * tensor + i for i in range(tensor)] for stage in range(pipeline)]
        lines = [[stage * tensor + i for stage in range(pipeline)] for i in range(tensor)]
        made = [distributed.new_group(ranks, timeout=timeout) for ranks in (*stages, *lines)]
        return made[self.layout.stage], made[pipeline + self.layout.tensor_rank]

    def _warm_up(self) -> None:
        """Exchange something in every way: libraries connect and take their buffers at the first call of each kind.

        What they take is measured around the connecting, and would be missing later.
        """
        probe = torch.zeros(1, device=self._device)
        self.all_gather(self.all_reduce(probe))
        if self.layout.stage > 0:
            self.receive(probe)
        if self.layout.stage < self.layout.pipeline - 1:
            self.send(probe)
        while self._under_way:
            with self._lost("connecting"):
                self._under_way.popleft()[0].wait()

    @contextmanager
    def _lost(self, what: str) -> Iterator[None]:
        """Raise RankLost for what torch raises, types of its own and RuntimeError, and the shared memory."""
        try:
            yield
        except (RuntimeError, TimeoutError) as error:  # torch's DistError is one of the first
            raise RankLost(
                f"rank {self.layout.rank} of {self.layout.world_size}: {what} failed, with up to {self._timeout_s:g} s "
                f"to wait: {error}"
            ) from error
