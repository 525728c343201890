"""What the front asks of adapters, carried out: first by whoever computes, then noted for the scheduler."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dormouse_worker.common.adapters import AdapterList
from dormouse_worker.common.commands import AddLora, Command, ListLoras, PinLora, RemoveLora
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.executor import Executor

logger = logging.getLogger(__name__)


class AdapterCommands:
    """Keeps the scheduler's view of adapters that of the executor. Nothing is under way while a command runs."""

    def __init__(self, executor: Executor, num_slots: int) -> None:
        self._executor = executor
        self.slots = AdapterSlots(num_slots)

    def __repr__(self) -> str:
        return f"AdapterCommands({self.slots!r})"

    @property
    def handlers(self) -> Mapping[type[Command], Callable[[Any], str | None]]:
        """Return who carries out which command."""
        return {RemoveLora: self.remove, PinLora: self.pin, ListLoras: self.list}

    def add(self, command: AddLora, seconds: float = math.inf) -> str | None:
        """Read it for about so long; return the adapter as JSON, None = there is more to read."""
        info = self._executor.add_lora(command.path, command.digest, seconds)
        if info is None:
            return None
        self.slots.add(info)
        self.slots.bring(info.digest)
        return _json(info)

    def remove(self, command: RemoveLora) -> None:
        """Let nobody ask for it; it is forgotten when no request needs it."""
        self.slots.remove(command.digest)
        self.forget_unused()

    def pin(self, command: PinLora) -> None:
        """Let it keep its slot, or no longer."""
        self.slots.pin(command.digest, is_pinned=command.is_pinned)

    def list(self, _: ListLoras) -> str:
        """Return all of them as JSON."""
        found = self._executor.list_loras()
        pinned = self.slots.pinned
        loaded = [msgspec.structs.replace(info, is_pinned=info.digest in pinned) for info in found.loaded]
        return _json(AdapterList(loaded, found.lost))

    def forget_unused(self) -> None:
        """Give up the removed adapters that no request needs any more."""
        for digest in self.slots.take_unused():
            self._executor.remove_lora(digest)

    def note_wake(self) -> None:
        """After a wake some adapters may be lost; nothing lies in the slots."""
        found = self._executor.list_loras()
        self.slots.note({info.digest: info for info in found.loaded}, found.lost)
        for digest, why in found.lost.items():
            logger.error("the adapter %s is lost: %s", digest[:12], why)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
