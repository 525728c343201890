"""Brings adapters of a hub to this machine: a program for each, beside whatever the front and other adapters do."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from dormouse_api.hub_uri import SCHEME
from dormouse_api.status import CallError
from dormouse_worker.front.engine.adapter_board import WantedAdapter
from dormouse_worker.front.flags.settings import FrontSettings

ARGV: tuple[str, ...] = (sys.executable, "-m", "dormouse_worker.download_adapter")
MAX_AT_ONCE = 4  # one that hangs holds up nobody else
TIMEOUT_S = 3600.0  # of one adapter: a hub that sends a byte now and then would never end
# Nothing of the hub's library outside the cache; its partial files of xet cannot be continued.
_ENVIRON = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_CODES: Mapping[str, grpc.StatusCode] = {
    "ModelNotFound": grpc.StatusCode.NOT_FOUND,
    "AdapterNotFound": grpc.StatusCode.NOT_FOUND,
    "AdapterInvalid": grpc.StatusCode.INVALID_ARGUMENT,
    "PickleRefused": grpc.StatusCode.INVALID_ARGUMENT,
    "Unauthorized": grpc.StatusCode.PERMISSION_DENIED,
    "StorageFull": grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How adapters are fetched."""

    cache: Path  # where they lie
    tokens: Path  # tokens of the hub, SECRET/KEY below
    environ: Mapping[str, str] = field(repr=False)  # of the program: HF_ENDPOINT, HF_TOKEN, proxies
    owns_cache: bool  # what nobody wants any more may be removed
    argv: Sequence[str] = ARGV


def fetch_settings(front: FrontSettings) -> FetchSettings:
    """Return those of a front. Workers of one machine share a cache; a pod's is its own."""
    return FetchSettings(front.lora_cache, front.lora_tokens, front.environ, owns_cache=not front.standalone)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What makes two fetches one: nobody has by another's token what his own does not open."""

    uri: str
    digest: str
    token: str


class AdapterFetches:
    """Owns the programs that fetch, and knows where their adapters lie."""

    def __init__(
        self, settings: FetchSettings, *, max_rank: Callable[[], int], on_words: Callable[[str, str], None]
    ) -> None:
        """`max_rank` is the highest that the engine takes; `on_words` hears how far the fetch of a URI is."""
        self._settings = settings
        self._max_rank = max_rank
        self._on_words = on_words
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)
        self._running: dict[_Wish, asyncio.Task[str]] = {}
        self._paths: dict[_Wish, str] = {}

    def __repr__(self) -> str:
        return f"AdapterFetches({len(self._paths)} here, {len(self._running)} on their way)"

    def path_of(self, wanted: WantedAdapter) -> str | None:
        """Return the directory in which an adapter lies; None = it has to be brought first."""
        return self._paths.get(_wish(wanted)) if wanted.source.startswith(SCHEME) else wanted.source

    async def bring(self, wanted: WantedAdapter) -> None:
        """Have `path_of` know it. Raises CallError with a reason; several who want one adapter share a program."""
        if self.path_of(wanted) is None:
            wish = _wish(wanted)
            if wish not in self._running:
                self._running[wish] = task = asyncio.create_task(self._fetch(wish))
                task.add_done_callback(lambda _: self._running.pop(wish))
            await asyncio.shield(self._running[wish])

    def note_digest(self, wanted: WantedAdapter, digest: str) -> None:
        """What lies there has this digest, by which it is wanted from now on."""
        if (path := self._paths.get(_wish(wanted))) is not None:
            self._paths[replace(_wish(wanted), digest=digest)] = path

    def forget(self, wanted: WantedAdapter) -> None:
        """What lies there cannot be loaded: the next `bring` looks again."""
        self._paths.pop(_wish(wanted), None)

    def keep(self, uris: Collection[str]) -> None:
        """End what nobody wants any more, and remove it."""
        for wish, task in self._running.items():
            if wish.uri not in uris:
                task.cancel()
        for wish in [wish for wish in self._paths if wish.uri not in uris]:
            path = self._paths.pop(wish)
            if self._settings.owns_cache and path not in self._paths.values():
                self._remove(Path(path))

    async def close(self) -> None:
        """End all programs."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _remove(self, path: Path) -> None:
        """Take it away at once, and give its room back beside what goes on."""
        gone = self._settings.cache / f".gone-{uuid.uuid4().hex}"
        with suppress(OSError):
            path.rename(gone)
            asyncio.get_running_loop().run_in_executor(None, partial(shutil.rmtree, gone, ignore_errors=True))

    async def _fetch(self, wish: _Wish) -> str:
        try:
            async with self._turns, asyncio.timeout(TIMEOUT_S):
                self._paths[wish] = path = await self._run(wish)
        except TimeoutError as error:
            raise _refusal("HubUnreachable", f"{wish.uri}: it did not come within {TIMEOUT_S:g} s") from error
        return path

    async def _run(self, wish: _Wish) -> str:
        """Run the program to its end; one that nobody waits for any more is killed."""
        own, pipe = self._settings, asyncio.subprocess.PIPE
        flags = [
            f"--uri={wish.uri}",
            f"--digest={wish.digest}",
            f"--cache={own.cache}",
            f"--max-rank={self._max_rank()}",
        ]
        secret = [f"--token-file={own.tokens / wish.token}"] if wish.token else []
        environ = {**own.environ, **_ENVIRON, "HF_HOME": str(own.cache / ".home")}
        try:
            process = await asyncio.create_subprocess_exec(
                *own.argv, *flags, *secret, stdin=pipe, stdout=pipe, env=environ
            )
        except OSError as error:
            raise _refusal(
                "HubUnreachable", f"{wish.uri}: the program that fetches cannot be started: {error}"
            ) from error
        try:
            return await self._listen(process, wish)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _listen(self, process: asyncio.subprocess.Process, wish: _Wish) -> str:
        assert process.stdout is not None, "started with a pipe"
        async for line in process.stdout:
            said: dict[str, Any] = json.loads(line)
            if "path" in said:
                return str(said["path"])
            if "reason" in said:
                raise _refusal(said["reason"], said["message"])
            self._on_words(wish.uri, said["words"])
        raise _refusal("HubUnreachable", f"{wish.uri}: the program that fetches ended with {await process.wait()}")


def _wish(wanted: WantedAdapter) -> _Wish:
    return _Wish(wanted.source, wanted.digest, wanted.token)


def _refusal(reason: str, message: str) -> CallError:
    return CallError(_CODES.get(reason, grpc.StatusCode.UNAVAILABLE), message, reason=reason)
