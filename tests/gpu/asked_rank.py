"""A rank that is asked as a front asks it: a controller and its engine, over a kit's device or on the CPU beside it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from dormouse_worker.common.commands import TAGS, InitializeCache, Shutdown, Sleep, WakeUp
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import (
    Added,
    AddRequest,
    CommandRequest,
    CommandResult,
    EngineStatus,
    State,
    StepOutputs,
    TokenLogprobs,
)
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.executor.worker.recording import Recording
from dormouse_worker.executor.worker.wrapper import WORKER_CLASSES

ON_CPU: Mapping[str, Any] = MappingProxyType(  # the formula, in torch: what a device is compared with
    {"worker_cls": WORKER_CLASSES["cpu"], "attention_backend": "sdpa"}
)
SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "dtype": "float32",
        "block_size": 16,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "kv_cache_memory_bytes": 16 << 20,
        "swap_space_bytes": 1 << 20,
        "threads": 1,
    }
)
LOGPROB_TOLERANCE = 1e-3


@dataclass(slots=True)
class Said:
    """What came of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    why_not: str = ""

    def is_that_of(self, other: Said) -> bool:
        """Return whether tokens are equal, and probabilities but for rounding."""
        pairs = [(self.logprobs, other.logprobs), (self.prompt_logprobs, other.prompt_logprobs)]
        return (
            not self.why_not
            and not other.why_not
            and bool(self.token_ids)
            and self.token_ids == other.token_ids
            and all(len(mine) == len(theirs) for mine, theirs in pairs)
            and all(
                abs(mine.sampled - theirs.sampled) <= LOGPROB_TOLERANCE
                for pair in pairs
                for mine, theirs in zip(*pair, strict=True)
            )
        )


def wish(prompt: Sequence[int], *, adapter: str = "", predicted: Sequence[int] = (), **sampling: Any) -> AddRequest:
    """Return a request; greedy, where nothing else is said."""
    return AddRequest(
        "", list(prompt), make_sampling(**sampling), adapter=adapter, prediction_token_ids=list(predicted)
    )


def count_equal(said: Sequence[Said], truth: Sequence[Said]) -> int:
    """Return how many answers are those of the truth; print the others."""
    for number, (mine, theirs) in enumerate(zip(said, truth, strict=True)):
        if not mine.is_that_of(theirs):
            print(f"    {number}: {mine}\n    and not {theirs}", flush=True)
    return sum(mine.is_that_of(theirs) for mine, theirs in zip(said, truth, strict=True))


class AskedRank:
    """One rank in READY."""

    def __init__(self, directory: Path, where: Mapping[str, Any], blocks: tuple[int, int] = (40, 0), **settings: Any):
        """`where` is ON_CPU or a kit's `rank_settings`; `blocks` are the cache's on the device and in host memory.

        Raises RuntimeError with the rank's own words if it does not start.
        """
        self._sent: list[Any] = []
        self._names = itertools.count()
        wanted = EngineSettings(model=str(directory), **{**SETTINGS, **where, **settings})
        self._executor = SingleProcessExecutor(wanted, {}, Host())
        self.controller = Controller(wanted, self._executor, send=self._sent.append, clock=lambda: 0.0)
        self.controller.start()
        if self.controller.state is State.FAILED:
            raise RuntimeError(self._status.failure_message)
        self.command(InitializeCache(*blocks))

    @property
    def num_graphs(self) -> int:
        """Return how many decode steps of a model that generates are recorded as graphs."""
        wrapper = self._executor._wrapper  # the kit looks inside
        assert wrapper is not None, "it has started"
        recording: Recording | None = wrapper._worker.recording  # type: ignore[union-attr]
        return 0 if recording is None else recording.num_graphs

    @property
    def engine(self) -> Engine:
        """Return the engine of a model that generates."""
        engine = self.controller._engine
        assert isinstance(engine, Engine), "it generates"
        return engine

    @property
    def _status(self) -> EngineStatus:
        return next(message for message in reversed(self._sent) if isinstance(message, EngineStatus))

    def command(self, command: Any) -> int | str:
        """Run a command to its end; return its value. Raises RuntimeError with its reason."""
        start = len(self._sent)
        self.controller.handle(CommandRequest(7, command))
        while not (found := [each for each in self._sent[start:] if isinstance(each, CommandResult)]):
            self.controller.step()
        (result,) = found
        if result.error_reason:
            raise RuntimeError(f"{result.error_reason}: {result.error_message}")
        return result.value

    def sleep_and_wake(self, level: int) -> None:
        """Sleep, and wake up."""
        self.command(Sleep(level, TAGS))
        self.command(WakeUp(TAGS))

    def run(self, *asked: Added) -> list[StepOutputs]:
        """Hand over these, with the names 0, 1, …, and step until each has its end; return all that is said."""
        start, first = len(self._sent), next(self._names)
        for number, each in enumerate(asked):
            self.controller.handle(msgspec.structs.replace(each, request_id=f"{first}-{number}"))
        while self.controller.has_work:
            self.controller.step()
        self.controller.rest()
        return [message for message in self._sent[start:] if isinstance(message, StepOutputs)]

    def ask(self, *asked: AddRequest) -> list[Said]:
        """Return what is said to these, all at once."""
        return gather(self.run(*asked), len(asked))

    def close(self) -> None:
        """Give everything back."""
        self.command(Shutdown())


@contextmanager
def asked_rank(
    directory: Path, where: Mapping[str, Any], blocks: tuple[int, int] = (40, 0), **settings: Any
) -> Iterator[AskedRank]:
    """Start a rank, and end it after the block."""
    rank = AskedRank(directory, where, blocks, **settings)
    try:
        yield rank
    finally:
        rank.close()


def gather(messages: Sequence[StepOutputs], count: int) -> list[Said]:
    """Return what messages say to each of so many requests that were asked at once."""
    said = [Said() for _ in range(count)]
    for message in messages:
        for name, why in (message.failed | message.refused).items():
            said[_number(name)].why_not = why
        for output in message.outputs:
            one = said[_number(output.request_id)]
            one.token_ids += output.token_ids
            one.logprobs += output.logprobs or []
            one.prompt_logprobs += output.prompt_logprobs or []
    return said


def _number(name: str) -> int:
    return int(name.partition("-")[2])
