"""Images that clients name by a URL, from hosts that the operator allows: nothing inside the cluster can be reached so.

A host is resolved once, and the connection goes to the address that was looked at, so that a name which means another
address a moment later leads nowhere. Redirects are followed to allowed hosts only, each looked at in the same way.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

import h11

from dormouse_api.images import BadImage
from dormouse_api.limits import MAX_IMAGE_BYTES

PORT = 443
MAX_REDIRECTS = 3
MAX_HEADER_BYTES = 16 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_READ_BYTES = 64 << 10
_NAT64 = ipaddress.ip_network("64:ff9b::/32")  # of both prefixes, the well-known one and that of local use

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # name, port → addresses
# address, port, TLS, the name that is to be proved → the connection
Dial = Callable[[str, int, ssl.SSLContext, str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def resolve(name: str, port: int) -> Sequence[str]:
    """Return the addresses of a name, as the system knows them. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def dial(
    address: str, port: int, tls: ssl.SSLContext, name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect. Raises OSError, of which TLS's errors are some."""
    return await asyncio.open_connection(address, port, ssl=tls, server_hostname=name)


@functools.cache
def trusting_the_system() -> ssl.SSLContext:
    """Return what TLS trusts unless it is told otherwise. Made once: to read the system's roots takes 34 ms."""
    return ssl.create_default_context()


def is_public(address: str) -> bool:
    """Return whether an address is a host's of the Internet, and hides no other within it."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # with a zone: of this link alone
        return False
    if isinstance(ip, ipaddress.IPv6Address) and (ip.ipv4_mapped or ip.sixtofour or ip.teredo or ip in _NAT64):
        return False
    is_of_site = isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified or is_of_site)


@dataclass(frozen=True, slots=True)
class _Target:
    name: str
    port: int
    path: str

    def __str__(self) -> str:
        """Return the host alone: paths and queries may be secrets."""
        return self.name if self.port == PORT else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class ImageFetcher:
    """Fetches from the hosts that are allowed, NAME or NAME:PORT; `*.NAME` are all names below one."""

    hosts: frozenset[str] = frozenset()  # none = no URL is fetched
    timeout_s: float = 10.0  # for one image, redirects and all
    tls: ssl.SSLContext = field(default_factory=trusting_the_system)
    resolve: Resolve = resolve
    dial: Dial = dial

    async def fetch(self, url: str) -> bytes:
        """Return the file. Raises BadImage, which names the host and never the rest of the URL."""
        if not self.hosts:
            raise BadImage("a URL of a host", "data: URLs; the operator has allowed no hosts")
        target = self._target(url)
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._follow(target, url)
        except TimeoutError as error:
            raise BadImage(f"an image of {target} that did not come", f"{self.timeout_s:g} seconds") from error
        except (OSError, h11.ProtocolError, EOFError) as error:
            raise BadImage(f"an image of {target} that cannot be fetched", "a host that answers over HTTPS") from error

    async def _follow(self, target: _Target, url: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            status, location, body = await self._get(target)
            if status not in _REDIRECTS:
                break
            url = urljoin(url, location)
            target = self._target(url)
        if status in _REDIRECTS:
            raise BadImage(f"redirected by {target}", f"at most {MAX_REDIRECTS} redirects")
        if status != 200:  # HTTP's own number
            raise BadImage(f"an image that {target} answers with the status {status}", "200")
        return body

    def _target(self, url: str) -> _Target:
        """Return where a URL leads. Raises BadImage for another scheme or host than is allowed."""
        try:
            parts = urlsplit(url)
            name, port = (parts.hostname or "").rstrip("."), parts.port or PORT
            name.encode("ascii")
        except ValueError as error:
            raise BadImage("no URL", "https://HOST/PATH") from error
        has_user = parts.username is not None or parts.password is not None
        if parts.scheme != "https" or not name or has_user:
            raise BadImage("no such URL", "https://HOST/PATH, without a user")
        if not self._allows(name, port):
            raise BadImage(
                "a URL of a host that is not allowed", "hosts that the operator names (DORMOUSE_IMAGE_HOSTS)"
            )
        path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        if not (path.isascii() and path.isprintable()) or " " in path:
            raise BadImage("no URL", "https://HOST/PATH, percent-encoded")
        return _Target(name, port, path)

    def _allows(self, name: str, port: int) -> bool:
        labels = name.split(".")
        wild = [f"*.{'.'.join(labels[place:])}" for place in range(1, len(labels))]
        suffix = "" if port == PORT else f":{port}"
        return any(f"{known}{suffix}" in self.hosts for known in (name, *wild))

    async def _get(self, target: _Target) -> tuple[int, str, bytes]:
        """Return status, Location and body. Raises BadImage, OSError, h11.ProtocolError."""
        addresses = await self.resolve(target.name, target.port)
        if not addresses or not all(map(is_public, addresses)):
            raise BadImage(f"a URL whose host {target} has an address that is not public", "hosts of the Internet")
        reader, writer = await self.dial(addresses[0], target.port, self.tls, target.name)
        try:
            return await _exchange(reader, writer, target)
        finally:
            writer.transport.abort()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: _Target
) -> tuple[int, str, bytes]:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
    headers = [("host", str(target)), ("accept", "image/*"), ("accept-encoding", "identity"), ("connection", "close")]
    sent = connection.send(h11.Request(method="GET", target=target.path, headers=headers))
    writer.write((sent or b"") + (connection.send(h11.EndOfMessage()) or b""))
    await writer.drain()
    status, location, body = 0, "", bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            status, told = event.status_code, dict(event.headers)
            location = told.get(b"location", b"").decode("latin-1")
            if status in _REDIRECTS:
                return status, location, b""
            _check(told, target)
        elif isinstance(event, h11.Data):
            body += event.data
            _check_size(len(body), target)
        elif isinstance(event, h11.EndOfMessage):
            return status, location, bytes(body)
        elif not isinstance(event, h11.InformationalResponse):
            raise EOFError


def _check(headers: dict[bytes, bytes], target: _Target) -> None:
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise BadImage(f"an image that {target} sends compressed", "identity, as was asked for")
    told = headers.get(b"content-length", b"0")
    _check_size(int(told) if told.isdigit() else 0, target)


def _check_size(num_bytes: int, target: _Target) -> None:
    if num_bytes > MAX_IMAGE_BYTES:
        raise BadImage(f"an image of {target} of more than {MAX_IMAGE_BYTES} bytes", f"at most {MAX_IMAGE_BYTES}")
