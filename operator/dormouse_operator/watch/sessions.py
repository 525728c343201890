"""The HTTP session that kopf watches with: ours, so that we hear what kopf does not tell.

Those are: that a watch had to list anew (only then objects may have vanished unnoticed), that a bookmark came (a watch
that is alive and has nothing to tell), and how each call ended. And so that kopf survives errors inside a stream.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
from aiohttp.connector import Connection
from yarl import URL

from dormouse_operator.watch.cache import SELECTORS
from dormouse_operator.watch.feed import Listener, Scope

_LOG = logging.getLogger(__name__)
_GONE = 410

OnCall = Callable[[str, str, int], None]  # verb, plural, HTTP status

_KINDS = {kind.plural: kind for kind in SELECTORS}


class WatchSessions:
    """The sessions of one run of kopf: a new one whenever kopf logs in."""

    def __init__(self, feed: Listener, on_call: OnCall | None = None) -> None:
        """Take who hears of the watches, and who of the answers."""
        self._feed = feed
        self._on_call = on_call
        self._open: list[aiohttp.ClientSession] = []

    def open(self, info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        """Return a session with these credentials; kopf closes it when they are good no more."""
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            trace_configs=[listening(self._feed, self._on_call)],
            response_class=_tapped(self._feed),
        )
        self._open = [*(session for session in self._open if not session.closed), session]
        return kopf.AiohttpSession(
            server=info.server,
            default_namespace=info.default_namespace,
            expiration=info.expiration,
            aiohttp_session=session,
        )

    async def close(self) -> None:
        """Close those that are still open."""
        for session in self._open:
            await session.close()


def scope_of(url: URL) -> Scope | None:
    """Return what a list or a watch is about, None for another call."""
    parts = url.path.strip("/").split("/")
    kind = _KINDS.get(parts[-1])
    if kind is None:
        return None
    return kind, parts[-2] if parts[-3:-2] == ["namespaces"] else None


def listening(feed: Listener, on_call: OnCall | None) -> aiohttp.TraceConfig:
    """Tell the feed of each watch that follows a list, and the counter of each answer."""
    listed: set[Scope] = set()

    async def started(
        _session: aiohttp.ClientSession, _: SimpleNamespace, call: aiohttp.TraceRequestStartParams
    ) -> None:
        scope = scope_of(call.url)
        if scope is not None and not _is_watch(call.url):
            listed.add(scope)

    async def ended(_session: aiohttp.ClientSession, _: SimpleNamespace, call: aiohttp.TraceRequestEndParams) -> None:
        scope = scope_of(call.url)
        if scope is None:
            return
        if on_call:
            on_call("watch" if _is_watch(call.url) else "list", scope[0].plural, call.response.status)
        if _is_watch(call.url) and call.response.status < 400:
            _follow(scope)

    def _follow(scope: Scope) -> None:
        if scope in listed:
            listed.remove(scope)
            feed.start(scope)
        else:
            feed.hear(scope)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(started)
    trace.on_request_end.append(ended)
    return trace


def _is_watch(url: URL) -> bool:
    return url.query.get("watch") == "true"


def _tapped(feed: Listener) -> type[aiohttp.ClientResponse]:
    """Return a kind of response that tells the feed of every piece of a watch, and of a list only its version.

    kopf takes 2 ms for each object of its first list, half a minute for 5,000 deployments. What is there the feed lists
    itself, once the watch runs: it has to know anyway what is not there any more.
    """

    class TappedResponse(aiohttp.ClientResponse):
        async def start(self, connection: Connection) -> aiohttp.ClientResponse:
            started = await super().start(connection)
            scope = scope_of(self.url)
            if scope is not None and _is_watch(self.url):
                self.content = Tap(self.content, lambda: feed.hear(scope))  # type: ignore[assignment]  # reads alike
            return started

        async def json(self, **kwargs: Any) -> Any:
            answer = await super().json(**kwargs)
            if scope_of(self.url) is None or "items" not in answer:
                return answer
            return {**answer, "items": [], "metadata": {"resourceVersion": answer["metadata"]["resourceVersion"]}}

    return TappedResponse


class Tap:
    """A stream of events that tells when something comes through it, and lets no error through that kopf dies of.

    Of an ERROR event kopf knows only 410, after which it lists anew; that is the right answer to any other one too.
    (With another code one of its streams ends, and kopf as a whole neither goes on nor ends.)
    """

    def __init__(self, content: aiohttp.StreamReader, on_data: Callable[[], None]) -> None:
        """Take the stream and who listens."""
        self._content = content
        self._on_data = on_data

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the stream."""
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """See StreamReader. Yields whole lines."""
        rest = b""
        async for data in self._content.iter_chunked(size):
            self._on_data()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield _without_death(line) + b"\n"


def _without_death(line: bytes) -> bytes:
    """Return the event, an error as one that kopf survives."""
    if b'"ERROR"' not in line[:64]:
        return line
    event = json.loads(line)
    if event["type"] != "ERROR" or event["object"].get("code") == _GONE:
        return line
    _LOG.warning("a watch broke and lists anew: %s", event["object"].get("message"))
    return json.dumps({**event, "object": {**event["object"], "code": _GONE}}).encode()
