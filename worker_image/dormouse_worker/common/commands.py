"""The commands that a front has for its engine, typed; which states allow each stands in `lifecycle`.

Whoever makes one has checked what a caller wrote (the gRPC edge does); here it is asserted, at birth and when decoded.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

WEIGHTS, KV_CACHE = TAGS = ("weights", "kv_cache")  # what can sleep apart, in the order in which it wakes
LEVELS = (1, 2)  # of an engine's sleep: 1: weights stay in host memory; 2: they are dropped
STANDBY_LEVEL = 3  # of a worker's: the front ends the engine, which is never told of it
LIGHTEST, DEEPEST = LEVELS  # whatever sleeps stays as deep as it is, so the lightest only gives a reservation back


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()


class _Command(msgspec.Struct, frozen=True, tag_field="method", tag=_snake_case):
    """What all have: the class is named as the call of `WorkerControl`, the method as vLLM's."""

    @property
    def method(self) -> str:
        """Return the name in log lines and errors."""
        return str(self.__struct_config__.tag)


class InitializeCache(_Command, frozen=True):
    """Allocate these counts and open; the engine compares them with its report."""

    num_gpu_blocks: int
    num_cpu_blocks: int = 0


class AbortAll(_Command, frozen=True):
    """End every request."""


class Sleep(_Command, frozen=True):
    """Give the memory of these parts back."""

    level: int = DEEPEST
    tags: tuple[str, ...] = TAGS

    def __post_init__(self) -> None:
        """Assert what the edge has checked."""
        assert self.level in LEVELS, self
        assert are_some_tags(self.tags), self


class PrepareWakeUp(_Command, frozen=True):
    """Reserve what waking these parts takes; answered by the missing bytes."""

    tags: tuple[str, ...] = TAGS

    def __post_init__(self) -> None:
        """Assert what the edge has checked."""
        assert are_some_tags(self.tags), self


class WakeUp(_Command, frozen=True):
    """Bring these parts back."""

    tags: tuple[str, ...] = TAGS

    def __post_init__(self) -> None:
        """Assert what the edge has checked."""
        assert are_some_tags(self.tags), self


class ResetPrefixCache(_Command, frozen=True):
    """Forget every cached prefix."""


class ResetMultimodalCache(_Command, frozen=True):
    """Forget every encoded image and sound, kept ones too."""


class SaveShardedState(_Command, frozen=True):
    """Write the weights as `load_format=sharded_state` reads them."""

    directory: str


class StartProfile(_Command, frozen=True):
    """Record every operation from now on."""

    directory: str  # absolute


class StopProfile(_Command, frozen=True):
    """Write the trace; answered by its path."""


class CheckHealth(_Command, frozen=True):
    """Compute something small."""


class AddLora(_Command, frozen=True):
    """Read an adapter into host memory; answered by an `AdapterInfo` as JSON. One that is there stays as it is."""

    path: str  # absolute, of a directory
    digest: str = ""  # what it has to be; "" = anything


class RemoveLora(_Command, frozen=True):
    """Forget an adapter once no request needs it; new ones cannot ask for it from now on."""

    digest: str


class PinLora(_Command, frozen=True):
    """Let an adapter keep its slot, or no longer."""

    digest: str
    is_pinned: bool = True


class ListLoras(_Command, frozen=True):
    """Tell which adapters there are; answered by `AdapterList` as JSON."""


class Shutdown(_Command, frozen=True):
    """Free everything; the process ends."""


Command = (
    InitializeCache
    | AbortAll
    | Sleep
    | PrepareWakeUp
    | WakeUp
    | ResetPrefixCache
    | ResetMultimodalCache
    | SaveShardedState
    | StartProfile
    | StopProfile
    | CheckHealth
    | AddLora
    | RemoveLora
    | PinLora
    | ListLoras
    | Shutdown
)


def are_some_tags(tags: Collection[str]) -> bool:
    """Return whether at least one part is named, and only such as can sleep."""
    return bool(tags) and set(tags) <= set(TAGS)
