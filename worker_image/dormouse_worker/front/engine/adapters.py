"""Has the engine hold the adapters that are wanted: when somebody asks, and again whenever an engine opens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import grpc
import msgspec

from dormouse_api.status import CallError
from dormouse_worker.common import commands
from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.commands import Command
from dormouse_worker.common.ipc import State
from dormouse_worker.front.engine.adapter_board import WantedAdapter
from dormouse_worker.front.engine.command_queue import CommandQueue
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)

_LOADING = frozenset({State.READY, State.DRAINING})  # in the other states they are loaded later


class Adapters:
    """Carries out what is asked of adapters. What is wanted stands on the worker's board."""

    def __init__(self, worker: Worker, turns: CommandQueue, modules: Iterable[tuple[str, str]] = ()) -> None:
        """`modules` are wanted from the start: names and paths."""
        self._worker = worker
        self._turns = turns
        self._opening: asyncio.Task[None] | None = None
        for name, path in modules:
            worker.adapters.want(WantedAdapter(name, path))

    def __repr__(self) -> str:
        return f"Adapters({self._worker.adapters!r})"

    async def add(self, wanted: WantedAdapter) -> WantedAdapter:
        """Let a name mean an adapter; what it meant before is served until the new one is there, and then no more.

        Without an engine that computes it is noted, and loaded when there is one. Raises CallError, and nothing has
        changed then.
        """
        board, model = self._worker.adapters, self._worker.served.edition
        if not model.engine.enable_lora:
            raise CallError(
                grpc.StatusCode.FAILED_PRECONDITION, "this worker has no room for adapters: start it with --enable-lora"
            )
        before = board.get(wanted.name)
        if before is not None and _holds(before, wanted):
            return before
        board.check(wanted, model.front.served_model_names)
        info = await self._load(wanted) if self._worker.board.state in _LOADING else None
        before = board.get(wanted.name)  # somebody may have given the name another meaning meanwhile
        board.want(wanted)
        if info is not None:
            board.note_loaded(wanted.name, info)
        await self._leave(before)
        return board.get(wanted.name) or wanted

    async def remove(self, name: str) -> None:
        """Let a name mean nothing; requests that run with it end as they would have."""
        await self._leave(self._worker.adapters.forget(name))

    async def pin(self, name: str, *, is_pinned: bool) -> WantedAdapter:
        """Let an adapter keep its slot, or no longer. Raises CallError NOT_FOUND, RESOURCE_EXHAUSTED."""
        wanted = self._worker.adapters.get(name)
        if wanted is None:
            raise CallError(grpc.StatusCode.NOT_FOUND, f"name is {name!r}; no adapter is called so")
        return await self.add(replace(wanted, is_pinned=is_pinned))

    def opens(self) -> None:
        """An engine takes requests: have it hold what is wanted, beside whatever else goes on."""
        if len(self._worker.adapters) and (self._opening is None or self._opening.done()):
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        """Load what is wanted; what cannot be is told by its name."""
        board = self._worker.adapters
        for wanted in list(board):
            if self._worker.board.state not in _LOADING:
                return
            try:
                board.note_loaded(wanted.name, await self._load(wanted))
            except CallError as error:
                board.note_failed(wanted.name, "NotLoaded", str(error))
                fields = {"name": wanted.name, "error": error}
                logger.error("adapter cannot be loaded", extra={"fields": fields})  # noqa: TRY400  no bug of ours

    async def _load(self, wanted: WantedAdapter) -> AdapterInfo:
        said = await self._run(commands.AddLora(wanted.path, wanted.digest))
        info = msgspec.json.decode(str(said), type=AdapterInfo)
        try:
            await self._run(commands.PinLora(info.digest, wanted.is_pinned))
        except CallError:
            if not self._worker.adapters.is_used(info.digest):
                await self._run(commands.RemoveLora(info.digest))
            raise
        return msgspec.structs.replace(info, is_pinned=wanted.is_pinned)

    async def _leave(self, former: WantedAdapter | None) -> None:
        """Give up what a name meant, unless another name means it, too."""
        if former is None or former.loaded is None or self._worker.adapters.is_used(former.loaded.digest):
            return
        if self._worker.board.state in _LOADING:
            await self._run(commands.RemoveLora(former.loaded.digest))

    async def _run(self, command: Command) -> int | str:
        return await self._turns.run(partial(self._worker.command, command))


def _holds(before: WantedAdapter, wanted: WantedAdapter) -> bool:
    """Return whether what is wanted is so already. Without a digest the files have to be read to know."""
    if before.loaded is None or (before.path, before.is_pinned) != (wanted.path, wanted.is_pinned):
        return False
    return wanted.digest == before.loaded.digest
