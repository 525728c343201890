"""A group whose ranks are threads of one process. For tests: exact, in order, and it breaks like a real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import TypeVar

import torch

from dormouse_worker.common.errors import RankLost
from dormouse_worker.common.layout import Layout

Result = TypeVar("Result")


class FakeGroup:
    """Owns what T × P ranks exchange, and counts it."""

    def __init__(self, tensor: int, pipeline: int = 1, timeout_s: float = 20) -> None:
        self.timeout_s = timeout_s
        self.num_sent = 0  # hidden states between stages
        self.layouts = [Layout(tensor, pipeline, rank) for rank in range(tensor * pipeline)]
        self.everybody = threading.Barrier(len(self.layouts))
        self.stages = [threading.Barrier(tensor) for _ in range(pipeline)]
        self.brought: list[torch.Tensor | None] = [None] * len(self.layouts)
        self.answers = [False] * len(self.layouts)
        self.lines: list[Queue[torch.Tensor]] = [Queue() for _ in self.layouts]  # to each rank from the one before
        self.ranks = [FakeCommunicator(self, layout) for layout in self.layouts]

    def __repr__(self) -> str:
        return f"FakeGroup({len(self.ranks)} ranks)"

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """Do the work for every rank at the same time; return the results by rank.

        Raises what one of them raised, not what the others say of that.
        """

        def guarded(rank: int) -> Result:
            try:
                return work(rank)
            except BaseException:
                self.break_up()
                raise

        with ThreadPoolExecutor(len(self.ranks)) as pool:
            futures = [pool.submit(guarded, rank) for rank in range(len(self.ranks))]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self.mend()
        for error in sorted(errors, key=lambda error: isinstance(error, RankLost)):
            raise error
        return [future.result() for future in futures]

    def mend(self) -> None:
        """Begin anew, nobody waiting and nothing on its way; a real group cannot."""
        for barrier in (self.everybody, *self.stages):
            barrier.reset()
        self.lines = [Queue() for _ in self.layouts]

    def break_up(self) -> None:
        """Let everybody who waits, or will wait, raise RankLost."""
        for barrier in (self.everybody, *self.stages):
            barrier.abort()


class FakeCommunicator:
    """Implements `Communicator` for one of the threads."""

    def __init__(self, group: FakeGroup, layout: Layout) -> None:
        self._group, self.layout = group, layout
        self.is_closed = False
        self.num_gathered = 0  # calls of `gather`

    def __repr__(self) -> str:
        return f"FakeCommunicator({self.layout})"

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        first, *others = self._exchange(tensor)
        return sum(others, first)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        brought = self._exchange(tensor)
        assert len({each.shape for each in brought}) == 1, [each.shape for each in brought]
        return torch.cat(list(brought), -1)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        self.num_gathered += 1
        gathered = self.all_gather(rows)
        return gathered if self.layout.tensor_rank == 0 else rows

    def send(self, hidden: torch.Tensor) -> None:
        """See `Communicator`."""
        self._group.num_sent += 1
        self._group.lines[self.layout.rank + self.layout.tensor].put(hidden)

    def receive(self, into: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        try:
            hidden = self._group.lines[self.layout.rank].get(timeout=self._group.timeout_s)
        except Empty as error:
            raise self._lost("receive") from error
        assert (hidden.shape, hidden.dtype) == (into.shape, into.dtype), (hidden.shape, into.shape)
        return into.copy_(hidden)

    def agree(self, *, is_ready: bool) -> list[int]:
        """See `Communicator`."""
        self._group.answers[self.layout.rank] = is_ready
        self.barrier()
        refusing = [rank for rank, answer in enumerate(self._group.answers) if not answer]
        self.barrier()
        return refusing

    def barrier(self) -> None:
        """See `Communicator`."""
        self._wait(self._group.everybody, "barrier")

    def close(self) -> None:
        """See `Communicator`."""
        self.is_closed = True

    def _exchange(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        stage, brought = self._group.stages[self.layout.stage], self._group.brought
        brought[self.layout.rank] = tensor.clone()
        self._wait(stage, "an exchange within the stage")
        start = self.layout.stage * self.layout.tensor
        taken = [tensor for tensor in brought[start : start + self.layout.tensor] if tensor is not None]
        self._wait(stage, "an exchange within the stage")
        return taken

    def _wait(self, barrier: threading.Barrier, what: str) -> None:
        try:
            barrier.wait(self._group.timeout_s)
        except threading.BrokenBarrierError as error:
            raise self._lost(what) from error

    def _lost(self, what: str) -> RankLost:
        return RankLost(f"rank {self.layout.rank}: {what} was not answered within {self._group.timeout_s} s")
