"""What the engine needs of whoever computes: one protocol for the step, a wider one for the commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import MadeTokenizer, MemoryReport, ModelInfo, RankStatus
from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.engine.grammars import Preparation


class ModelExecutor(Protocol):
    """Runs forward passes, on whatever device."""

    def layer_windows(self) -> tuple[int | None, ...]:
        """Return the sliding window of each layer group of the loaded model; None = its layers see everything."""

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """Begin to compile it, unless that is done; what is returned keeps it for sequences to come.

        Raises GrammarRefused where sequences cannot be bound at all.
        """

    def execute_model(self, batch: Batch) -> ModelOutput:
        """Compute the batch; remember its sequences and what was sampled.

        Any exception fails the requests of this batch and no others; the next batch is a fresh one then. But for
        GroupBroken: this process cannot go on then, and its requests are to be continued elsewhere.
        """


@runtime_checkable
class StagedExecutor(ModelExecutor, Protocol):
    """Takes further batches while it computes; `execute_model` is `submit`, and at once what that returns."""

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """Hand over a batch, to be computed behind those handed over before; return who waits for its output.

        To be called once for each batch, in their order; both raise as `execute_model` does. Batches that were handed
        over behind one that failed have outputs too, or errors, which count for nothing.
        """

    def runs_ahead(self) -> bool:
        """Return whether a batch may go on from tokens whose output nobody has waited for yet; asked after loading.

        Where it may, that is worth it: `submit` returns while the device computes.
        """


@runtime_checkable
class SeeingExecutor(ModelExecutor, Protocol):
    """Keeps rows of images, as batches say."""

    def forget_images(self) -> None:
        """Drop all of them, also those that a sleep has kept; no batch is under way."""


@dataclass(frozen=True, slots=True)
class SleepReport:
    """What a sleep gave back and what the process still holds, in bytes of the device's memory."""

    freed_bytes: int
    residual_bytes: int
    host_copy_bytes: int = 0  # what lies in host memory for the wake
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of `save` and `drop`


@dataclass(frozen=True, slots=True)
class WakeReport:
    """How long each phase of a wake took: reserve, each tag, verify."""

    phases: Mapping[str, float]


class Executor(ModelExecutor, Protocol):
    """The verbs of all workers of this rank group. Each may raise WorkerError; anything else is unexpected."""

    def init_device(self) -> None:
        """Import the heavy libraries, choose the device, take the memory baseline."""

    def load_model(self) -> None:
        """Load the weights."""

    def get_model_info(self) -> ModelInfo:
        """Describe the loaded model."""

    def convert_tokenizer(self) -> MadeTokenizer:
        """Make a tokenizer.json for a model that has none, if there is a need and a way. Raises nothing."""

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """Profile; return how many blocks fit on the device and in host memory."""

    def get_memory_report(self) -> MemoryReport | None:
        """Return what the last profile measured; None before the first."""

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Allocate the cache and warm up; replaces a cache of another size."""

    def start_profile(self, directory: str) -> None:
        """Record every operation of every rank from now on. Raises WrongState if that is so already."""

    def stop_profile(self) -> str:
        """Write what was recorded; return the path of rank 0's trace. Raises WrongState if no profile runs."""

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """Give the tags' memory back; what sleeps already stays asleep, and a deeper level is reached from a lower one.

        `kept_blocks` of the cache (physical ones, of the pools) are copied to host memory and return with the wake. So
        are rows of images, where `MemorySettings.keeps_images` says so; else they are gone.
        Any error leaves everything as it was. A reservation of `prepare_wake_up` is given back. An unfinished profile
        is written first; so it is at `shutdown`.
        """

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """Reserve all the memory that waking the tags takes; return 0, or the bytes that are missing for it.

        Where bytes are missing nothing is reserved. Reserved already = nothing happens.
        """

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """Bring the tags' memory back; once nothing sleeps any more, verify by the golden tokens.

        Reserves first where nobody prepared. Raises InsufficientMemory or what loading raises, and everything sleeps
        as before; Damaged, and nothing is held.
        """

    def add_lora(self, path: str, digest: str = "", seconds: float = math.inf) -> AdapterInfo | None:
        """Read an adapter into host memory, for about so long; None = call again, with the same one, to go on.

        Passes may come in between; sleep, removal and other adapters may not. Raises AdapterNotFound, AdapterInvalid,
        AdapterLimit, InvalidSettings, and it is over then.
        """

    def remove_lora(self, digest: str) -> None:
        """Forget an adapter that no batch to come uses; nothing happens if it is not known."""

    def list_loras(self) -> AdapterList:
        """Return the adapters that there are; after a wake some may be lost."""

    def save_sharded_state(self, directory: str) -> None:
        """Write this rank's weights as `load_format=sharded_state` reads them. Raises InvalidArgument, WorkerError."""

    def get_rank_statuses(self) -> tuple[RankStatus, ...]:
        """Return what is known of each rank of a group, by rank; empty where one rank is all there is."""

    def check_ranks(self) -> None:
        """Raise GroupBroken, naming the rank, if the group cannot go on. Cheap: called whenever nothing runs."""

    def verify(self) -> None:
        """Repeat the golden tokens, with everything awake and nothing under way; the cache stays as it is.

        The ranks forget their sequences. Raises Damaged if the model does not say what it said at its first start.
        """

    def check_health(self) -> None:
        """Raise if the worker cannot compute."""

    def shutdown(self) -> None:
        """Free everything; the worker is not used again."""

    def abandon(self) -> None:
        """End other processes that compute for us, without waiting for anything that may hang; for a failed end."""
