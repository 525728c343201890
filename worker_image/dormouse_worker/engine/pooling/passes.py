"""A call for vectors, and a pass over some of its texts and of others'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dormouse_worker.common.task_messages import AddPooling
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch, PoolingOutput
from dormouse_worker.engine.pooling.executor import PassUnderWay, PoolingExecutor


@dataclass(slots=True, eq=False)
class Call:
    """Texts that are answered together."""

    message: AddPooling
    order: tuple[int, int]  # priority, number of arrival
    arrival_s: float
    vectors: list[bytes] = field(default_factory=list)
    num_taken: int = 0  # texts that a pass has, or had
    first_scheduled_s: float | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether every text has its vector."""
        return len(self.vectors) == len(self.message.inputs)

    def sequence(self, place: int) -> PooledSequence:
        """Return one of its texts as a pass takes it."""
        starts = self.message.second_starts
        return PooledSequence(self.message.inputs[place], self.message.params, starts[place] if starts else 0)


Taken = list[tuple[Call, int]]  # who, and which of his texts


@dataclass(slots=True, eq=False)
class Pass:
    """A forward pass, begun or not."""

    taken: Taken  # the most urgent first
    seconds: float = 0.0  # that it was computed for
    _under_way: PassUnderWay | None = None

    @property
    def priority(self) -> int:
        """Return that of its most urgent call."""
        return self.taken[0][0].message.priority

    @property
    def calls(self) -> list[Call]:
        """Return whose texts are in it, once for each text."""
        return [call for call, _ in self.taken]

    @property
    def num_tokens(self) -> int:
        """Return the rows of its packed input."""
        return sum(len(call.message.inputs[place]) for call, place in self.taken)

    def advance(self, executor: PoolingExecutor, seconds: float, clock: Callable[[], float]) -> PoolingOutput | None:
        """Compute for so long, and until it can stop; return its output once it is done. Raises as executors do."""
        begun_s = clock()
        if self._under_way is None:
            self._under_way = executor.begin_pooling(
                PoolingBatch(tuple(call.sequence(place) for call, place in self.taken))
            )
        is_done = self._under_way.advance(seconds)
        self.seconds += clock() - begun_s
        return self._under_way.finish() if is_done else None

    def leave(self) -> None:
        """Drop what there is of it, once it was advanced."""
        assert self._under_way is not None, "it begins in the step that makes it"
        self._under_way.leave()
