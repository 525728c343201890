"""The HTTP session that kopf watches with: ours, so that we hear what kopf does not tell.

Those are: that a watch had to list anew (only then objects may have vanished unnoticed), that a bookmark came (a watch
that is alive and has nothing to tell), and how each call ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
from aiohttp.connector import Connection
from yarl import URL

from dormouse_operator.cache import SELECTORS
from dormouse_operator.feed import Feed, Scope

OnCall = Callable[[str, str, int], None]  # verb, plural, HTTP status

_KINDS = {kind.plural: kind for kind in SELECTORS}


def open_session(info: kopf.ConnectionInfo, feed: Feed, on_call: OnCall | None = None) -> kopf.AiohttpSession:
    """Return a session with these credentials; kopf closes it."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        trust_env=info.trust_env,
        trace_configs=[listening(feed, on_call)],
        response_class=_tapped(feed),
    )
    return kopf.AiohttpSession(
        server=info.server,
        default_namespace=info.default_namespace,
        expiration=info.expiration,
        aiohttp_session=session,
    )


def scope_of(url: URL) -> Scope | None:
    """Return what a list or a watch is about, None for another call."""
    parts = url.path.strip("/").split("/")
    kind = _KINDS.get(parts[-1])
    if kind is None:
        return None
    return kind, parts[-2] if parts[-3:-2] == ["namespaces"] else None


def listening(feed: Feed, on_call: OnCall | None) -> aiohttp.TraceConfig:
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


def _tapped(feed: Feed) -> type[aiohttp.ClientResponse]:
    """Return a kind of response that tells the feed of every piece of a watch."""

    class TappedResponse(aiohttp.ClientResponse):
        async def start(self, connection: Connection) -> aiohttp.ClientResponse:
            started = await super().start(connection)
            scope = scope_of(self.url)
            if scope is not None and _is_watch(self.url):
                self.content = Tap(self.content, lambda: feed.hear(scope))  # type: ignore[assignment]  # reads alike
            return started

    return TappedResponse


class Tap:
    """A stream that tells when something comes through it."""

    def __init__(self, content: aiohttp.StreamReader, on_data: Callable[[], None]) -> None:
        """Take the stream and who listens."""
        self._content = content
        self._on_data = on_data

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the stream."""
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """See StreamReader."""
        async for data in self._content.iter_chunked(size):
            self._on_data()
            yield data
