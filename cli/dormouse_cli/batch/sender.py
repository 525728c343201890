"""Sends requests over HTTP, each until it has an answer or its time is over. The one place that knows aiohttp."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from dormouse_cli.batch.lines import NoReply, Reply
from dormouse_cli.batch.patience import MAX_FAILURES, is_temporary, pause_s, tells_to_come_later
from dormouse_cli.errors import CommandFailed
from dormouse_cli.reach import Door, Way, tls_of

_MODELS = "/v1/models"
_REQUEST_ID = "X-Request-Id"
Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What came of sending a request once."""

    reply: Reply | NoReply
    headers: Mapping[str, str] = field(default_factory=dict)
    is_final: bool = False  # another try would end in the same way
    is_told_to_come_later: bool = False
    unreachable: Exception | None = None


@dataclass(slots=True)
class Sender:
    """One connection to a gateway, or several."""

    session: aiohttp.ClientSession
    address: str
    timeout_s: float  # of one request, with all its tries
    tls_name: str | None = None  # in the certificate, where it is not that of the address
    clock: Clock = time.monotonic
    sleep: Sleep = asyncio.sleep

    async def greet(self) -> None:
        """Ask for the models, so that a wrong address or key is told before a request is sent. Raises CommandFailed."""
        try:
            async with self.session.get(_MODELS, server_hostname=self.tls_name) as response:
                words = (await response.text())[:500]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._nobody(error) from error
        if response.status in {401, 403}:
            raise CommandFailed(f"{self.address} refuses the API key: {words}")

    async def ask(self, url: str, body: Mapping[str, Any]) -> Reply | NoReply:
        """Return what came of a request. Raises CommandFailed if nobody listens any more: then none has a chance."""
        ends = self.clock() + self.timeout_s
        num_failures = 0
        for num_tries in itertools.count(1):
            attempt = await self._try(url, body, ends - self.clock())
            num_failures += not attempt.is_told_to_come_later
            wait_s = pause_s(num_tries, attempt.headers)
            if attempt.is_final or num_failures >= MAX_FAILURES or self.clock() + wait_s >= ends:
                break
            await self.sleep(wait_s)
        if attempt.unreachable:
            raise self._nobody(attempt.unreachable) from attempt.unreachable
        return attempt.reply

    async def _try(self, url: str, body: Mapping[str, Any], timeout_s: float) -> _Attempt:
        try:
            return await self._post(url, body, timeout_s)
        except aiohttp.ClientConnectorError as error:
            return _Attempt(NoReply("unreachable", str(error)), unreachable=error)
        except TimeoutError:
            return _Attempt(NoReply("timeout", f"no answer within {self.timeout_s:g} s"), is_final=True)
        except (aiohttp.ClientError, OSError) as error:
            return _Attempt(NoReply("connection_lost", str(error) or type(error).__name__))

    async def _post(self, url: str, body: Mapping[str, Any], timeout_s: float) -> _Attempt:
        timeout = aiohttp.ClientTimeout(total=max(0.001, timeout_s))  # aiohttp's 0 is no limit
        async with self.session.post(url, json=body, timeout=timeout, server_hostname=self.tls_name) as response:
            is_final = not is_temporary(response.status)
            come_later = tells_to_come_later(response.status)
            reply = await _read(response)
            return _Attempt(reply, response.headers, is_final=is_final, is_told_to_come_later=come_later)

    def _nobody(self, error: Exception) -> CommandFailed:
        return CommandFailed(f"nothing answers at {self.address}: {error or type(error).__name__}")


@asynccontextmanager
async def connected(way: Way, there: Door, *, timeout_s: float, max_concurrency: int) -> AsyncIterator[Sender]:
    """Give a sender for an address. Raises CommandFailed."""
    tls = tls_of(way, there.host)
    headers = {"Authorization": f"Bearer {way.api_key}"} if way.api_key else {}
    trusted: ssl.SSLContext | bool = True
    if tls is not None:
        trusted = ssl.create_default_context(cadata=tls.roots.decode() if tls.roots else None)
    base = f"{'https' if tls else 'http'}://{there.address}"
    connector = aiohttp.TCPConnector(limit=max_concurrency, ssl=trusted)
    async with aiohttp.ClientSession(base, headers=headers, connector=connector) as session:
        yield Sender(session, there.address, timeout_s, (there.host or None) if tls else None)


async def _read(response: aiohttp.ClientResponse) -> Reply | NoReply:
    try:
        said = await response.json(content_type=None)
    except ValueError:
        words = (await response.text(errors="replace"))[:200]
        return NoReply("unreadable", f"status {response.status}, and no JSON: {words}")
    return Reply(response.status, response.headers.get(_REQUEST_ID, ""), said)
