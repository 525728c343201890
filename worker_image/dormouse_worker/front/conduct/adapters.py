"""Has the engine hold the adapters that are wanted: when somebody asks, and again whenever an engine opens."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import grpc
import msgspec

from dormouse_api.hub_uri import SCHEME
from dormouse_api.status import CallError
from dormouse_worker.common import commands
from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.commands import Command
from dormouse_worker.common.ipc import State
from dormouse_worker.front.engine.adapter_board import WantedAdapter
from dormouse_worker.front.engine.adapter_fetches import AdapterFetches, fetch_settings
from dormouse_worker.front.engine.command_queue import CommandQueue
from dormouse_worker.front.flags.settings import FrontSettings
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)

_LOADING = frozenset({State.READY, State.DRAINING})  # in the other states they are loaded later
RETRY_S = 30.0  # until what could not be loaded is tried again


class Adapters:
    """Carries out what is asked of adapters, one after the other. What is wanted stands on the worker's board."""

    def __init__(
        self,
        worker: Worker,
        turns: CommandQueue,
        settings: FrontSettings,
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self._worker = worker
        self._fetches = AdapterFetches(
            fetch_settings(settings),
            max_rank=lambda: worker.served.edition.engine.max_lora_rank,
            on_words=worker.adapters.note_progress,
        )
        self._is_one_pod = settings.place.num_nodes == 1
        self._fetching: dict[tuple[str, str, str], asyncio.Task[None]] = {}  # by name, source and digest
        self._adding: Counter[str] = Counter()  # sources of adapters that are no name's yet
        self._turns = turns
        self._retry_s = retry_s
        self._retry: asyncio.TimerHandle | None = None
        self._lock = asyncio.Lock()  # one changes what the engine holds
        self._opening: asyncio.Task[None] | None = None
        self._is_due = False  # somebody asked since the last round began
        self._reads_all = False  # what an engine holds may have gone
        self._orphans: set[str] = set()  # digests that the engine has to give up
        for name, source in settings.lora_modules:
            worker.adapters.want(WantedAdapter(name, source))

    def __repr__(self) -> str:
        return f"Adapters({self._worker.adapters!r})"

    async def add(self, wanted: WantedAdapter) -> WantedAdapter:
        """Let a name mean an adapter; what it meant before is served until the new one is there, and then no more.

        Without an engine that computes it is noted, and loaded when there is one. Raises CallError, and nothing has
        changed then.
        """
        self._require_room([wanted])
        self._worker.adapters.check(wanted, self._worker.served.edition.front.served_model_names)
        self._adding[wanted.source] += 1
        try:
            if self._worker.board.state in _LOADING:
                await self._fetches.bring(wanted)
            async with self._lock:
                return await self._add(wanted)
        finally:
            self._adding[wanted.source] -= 1

    async def _add(self, wanted: WantedAdapter) -> WantedAdapter:
        board = self._worker.adapters
        before = board.get(wanted.name)
        if before is not None and _holds(before, wanted):
            return before
        board.check(wanted, self._worker.served.edition.front.served_model_names)
        info = await self._load(wanted) if self._worker.board.state in _LOADING else None
        before = board.get(wanted.name)  # a set may have been asked for meanwhile
        board.want(wanted)
        if info is not None:
            board.note_loaded(wanted.name, info)
        await self._leave(before)
        return board.get(wanted.name) or wanted

    async def remove(self, name: str) -> None:
        """Let a name mean nothing; requests that run with it end as they would have."""
        async with self._lock:
            await self._leave(self._worker.adapters.forget(name))
        self._keep_wanted()

    async def pin(self, name: str, *, is_pinned: bool) -> WantedAdapter:
        """Let an adapter keep its slot, or no longer. Raises CallError NOT_FOUND, RESOURCE_EXHAUSTED."""
        wanted = self._worker.adapters.get(name)
        if wanted is None:
            raise CallError(grpc.StatusCode.NOT_FOUND, f"name is {name!r}; no adapter is called so")
        return await self.add(replace(wanted, is_pinned=is_pinned))

    def set(self, wanted: Sequence[WantedAdapter], asked_as: str) -> None:
        """Let there be these and no others; they are loaded beside whatever goes on. Raises CallError: as before then.

        What cannot be loaded is told by its name and tried again; the others are there.
        """
        if wanted:
            self._require_room(wanted)
        board = self._worker.adapters
        board.check_all(wanted, self._worker.served.edition.front.served_model_names)
        gone = board.want_all(wanted, asked_as)
        self._orphans |= {each.loaded.digest for each in gone if each.loaded is not None}
        self._go()

    async def close(self) -> None:
        """End whatever is on its way."""
        if self._retry is not None:
            self._retry.cancel()
        await self._fetches.close()

    def opens(self) -> None:
        """An engine takes requests: have it hold what is wanted, beside whatever else goes on."""
        self._reads_all = True
        if len(self._worker.adapters) or self._orphans:
            self._go()

    def _require_room(self, wanted: Iterable[WantedAdapter]) -> None:
        """Raise CallError FAILED_PRECONDITION without room for adapters, or where ranks would not find them."""
        if not self._worker.served.edition.engine.enable_lora:
            raise CallError(
                grpc.StatusCode.FAILED_PRECONDITION, "this worker has no room for adapters: start it with --enable-lora"
            )
        fetched = next((each for each in wanted if each.source.startswith(SCHEME)), None)
        if fetched and not self._is_one_pod:
            words = "is not fetched for a group of several pods: put it where each of them finds it, and name the path"
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, f"uri is {fetched.source!r}, which {words}")

    def _go(self) -> None:
        """Begin a round, or have the one that runs be followed by another."""
        self._is_due = True
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._rounds())

    async def _rounds(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        while self._is_due and self._worker.board.state in _LOADING:
            self._is_due, reads_all, self._reads_all = False, self._reads_all, False
            await self._give_up_orphans()
            names = [each.name for each in self._worker.adapters]
            while names:
                name = min(names, key=lambda each: not self._worker.adapters.awaited[each])
                names.remove(name)
                wanted = self._worker.adapters.get(name)
                if wanted is not None and (reads_all or not wanted.is_settled) and self._is_here(wanted.target):
                    async with self._lock:
                        await self._bring(name, reads_all=reads_all)
        self._keep_wanted()
        self._retry_later()

    def _retry_later(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        has_room, board = self._worker.served.edition.engine.enable_lora, self._worker.adapters
        if has_room and self._worker.board.state in _LOADING and any(each.failure for each in board):
            self._retry = asyncio.get_running_loop().call_later(self._retry_s, self._go)

    def _is_here(self, wanted: WantedAdapter) -> bool:
        """Return whether an adapter's files are here. Else they are fetched, and a round of their own follows."""
        if self._fetches.path_of(wanted) is not None:
            return True
        key = (wanted.name, wanted.source, wanted.digest)
        if key not in self._fetching:
            self._fetching[key] = task = asyncio.create_task(self._fetch(wanted))
            task.add_done_callback(lambda _: self._fetching.pop(key))
        return False

    async def _fetch(self, wanted: WantedAdapter) -> None:
        try:
            await self._fetches.bring(wanted)
        except CallError as error:
            self._note_failed(wanted, error)
            self._retry_later()
        else:
            self._go()

    def _keep_wanted(self) -> None:
        """Fetch and keep nothing that no name means, shall mean, or is about to."""
        board = self._worker.adapters
        named = {source for each in board for source in (each.source, each.target.source)}
        self._fetches.keep(named | {source for source, count in self._adding.items() if count})

    async def _give_up_orphans(self) -> None:
        async with self._lock:
            orphans, self._orphans = self._orphans, set()
            for digest in orphans:
                await self._give_up(digest)

    async def _bring(self, name: str, *, reads_all: bool) -> None:
        """Load what a name shall mean; what cannot be is told by its name."""
        board = self._worker.adapters
        before = board.get(name)
        if before is None or (before.is_settled and not reads_all) or self._worker.board.state not in _LOADING:
            return
        try:
            info = await self._load(before.target)
        except CallError as error:
            self._fetches.forget(before.target)
            self._note_failed(before.target, error)
            return
        now = board.get(name)
        if now is None or now.target != before.target:  # a set was asked for meanwhile
            await self._give_up(info.digest)
            return
        board.note_loaded(name, info)
        await self._leave(before)

    def _note_failed(self, wanted: WantedAdapter, error: CallError) -> None:
        """Tell why a name does not mean what it shall, unless it shall mean something else by now."""
        board = self._worker.adapters
        now = board.get(wanted.name)
        if now is None or not now.target.wants_same(wanted):
            return
        board.note_failed(wanted.name, error.reason or "NotLoaded", str(error))
        if now.failure is None or now.failure[1] != str(error):  # a retry tells nothing new
            fields = {"name": wanted.name, "error": error}
            logger.error("adapter cannot be loaded", extra={"fields": fields})

    async def _load(self, wanted: WantedAdapter) -> AdapterInfo:
        """Have the engine hold it, pinned if any of its names wants that. Raises CallError."""
        path = self._fetches.path_of(wanted)
        if path is None:
            raise CallError(grpc.StatusCode.UNAVAILABLE, f"{wanted.source}: its files are not here yet")
        said = await self._run(commands.AddLora(path, wanted.digest))
        info = msgspec.json.decode(str(said), type=AdapterInfo)
        self._fetches.note_digest(wanted, info.digest)
        is_pinned = wanted.is_pinned or self._worker.adapters.pins(info.digest, beside=wanted.name)
        try:
            await self._run(commands.PinLora(info.digest, is_pinned))
        except CallError:
            await self._give_up(info.digest)
            raise
        return msgspec.structs.replace(info, is_pinned=is_pinned)

    async def _leave(self, former: WantedAdapter | None) -> None:
        """Have the engine give up what a name meant."""
        if former is not None and former.loaded is not None:
            await self._give_up(former.loaded.digest)

    async def _give_up(self, digest: str) -> None:
        """Have the engine give an adapter up where no name means it; another name may not want its slot kept."""
        board = self._worker.adapters
        if self._worker.board.state not in _LOADING:
            self._orphans.add(digest)
            return
        try:
            if not board.is_used(digest):
                await self._run(commands.RemoveLora(digest))
            elif not board.pins(digest):
                await self._run(commands.PinLora(digest, is_pinned=False))
        except CallError:  # the engine ends, or nobody is heard for now: the next round tries again
            self._orphans.add(digest)

    async def _run(self, command: Command) -> int | str:
        return await self._turns.run(partial(self._worker.command, command))


def _holds(before: WantedAdapter, wanted: WantedAdapter) -> bool:
    """Return whether what is wanted is so already. Without a digest the files have to be read to know."""
    if before.loaded is None or (before.source, before.is_pinned) != (wanted.source, wanted.is_pinned):
        return False
    return wanted.digest == before.loaded.digest
