"""Who may call, what, and how much: the API keys. Owns the known keys and what each is using now; knows no wire.

Keys are InferenceKeys, or lie in a directory (a mounted Secret), one file for each; the file's name is the key's name
in logs and messages:

    {"sha256": "<64 hexadecimal digits>", "models": ["tiny", "a/*"], "requests_per_minute": 60, "max_concurrent": 4}

Only the digest is needed; what is left out is not limited. A model is named as clients name it, as namespace/name, or
with all others of its namespace as namespace/*. The key itself is a long random text (`openssl rand -hex 32`): of such
ones a plain SHA-256 cannot be undone. Rates hold over all gateways (`counting`), max_concurrent in each by itself.

An InferenceKey names models of its own namespace only. What is deleted or expires ends what runs under it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc

from dormouse_api.status import CallError
from dormouse_gateway.clients.counting import Admission, Counting
from dormouse_gateway.clients.key_files import ApiKey, BadKeyFile, read_key
from dormouse_gateway.clients.key_objects import KeyObjects
from dormouse_gateway.clients.salts import presented_key
from dormouse_gateway.clients.shares import NOBODYS, Flow
from dormouse_gateway.clients.tenure import Tenure
from dormouse_gateway.model import Deployment
from dormouse_kube.api import Resource
from dormouse_kube.reflector import ObjectKey

_LOG = logging.getLogger(__name__)
_BUSY_RETRY_S = 1.0  # some request of the key ends, nobody knows when


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody whose key was found, or anybody where no keys are asked for."""

    key: ApiKey | None = None
    admission: Admission | None = None  # of a key with limits

    @property
    def flow(self) -> Flow:
        """Return whose turn a request of the caller takes, and its weight."""
        return Flow(self.key.name, self.key.weight) if self.key else NOBODYS

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return where the key stands with its limits, as headers say it."""
        return self.admission.headers if self.admission else ()

    def name(self, peer: str) -> str:
        """Return what tells callers apart: the name of the key; where none are asked for, the address of the peer.

        What a client says of itself, a key that nobody checks or X-Forwarded-For, counts for nothing.
        """
        return f"key {self.key.name}" if self.key else f"at {_host(peer)}"

    def may_use(self, deployment: Deployment, name: str) -> bool:
        """Return whether the model is for this caller; `name` is the shortest under which it answers."""
        if self.key is None:
            return True
        if self.key.namespace and self.key.namespace != deployment.key.namespace:
            return False
        if self.key.models is None:
            return True
        return name.removeprefix(f"{self.key.namespace}/") in self.key.models or self.owns(deployment)

    def owns(self, deployment: Deployment) -> bool:
        """Return whether the key is bound to the model's namespace, or to the model itself by its full name."""
        if self.key is None:
            return False
        if self.key.namespace:
            is_there = self.key.namespace == deployment.key.namespace
            return is_there and (self.key.models is None or deployment.key.name in self.key.models)
        if self.key.models is None:
            return False
        return not self.key.models.isdisjoint({deployment.full_name, f"{deployment.key.namespace}/*"})


ANYBODY = Caller()


@dataclass(slots=True)
class Keyring:
    """The keys of a directory, and InferenceKeys. Where no key is required, callers without one may do everything."""

    directory: Path | None = None
    is_required: bool = False  # also without a directory
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    counting: Counting = field(default_factory=Counting)
    objects: KeyObjects = field(default_factory=KeyObjects)
    _tenure: Tenure = field(default_factory=Tenure)
    _keys: dict[str, ApiKey] = field(default_factory=dict)
    _running: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read all files. Raises BadKeyFile or OSError."""
        self.is_required = self.is_required or self.directory is not None
        self._keys = {path.name: read_key(path) for path in self._files()}

    def __repr__(self) -> str:
        """Show the names and what runs."""
        running = [f"{name}: {self._running.get(name, 0)}" for name in sorted(self._keys)]
        return f"Keyring({', '.join(running) if self.is_required else 'open'})"

    def reload(self) -> None:
        """Read the directory again. A file that is none of a key leaves its key as it was, and is logged.

        Raises OSError for what cannot be read now: that stays as it was, and all else is taken.
        """
        unread: list[OSError] = []
        try:
            self._keys = {key.name: key for path in self._files() if (key := self._reread(path, unread))}
        finally:
            self.review()
        if unread:
            raise unread[0]

    def on_object(self, key: ObjectKey, obj: Resource | None) -> None:
        """Take a change of an InferenceKey. Never raises."""
        self.objects.on_change(key, obj)
        self.review()

    def review(self) -> None:
        """End what runs under keys that are no more, and forget what nobody uses. To be called now and then, too."""
        self._tenure.review(self._why_not)
        self.counting.forget()

    def identify(self, metadata: Any) -> Caller:
        """Return who presents the metadata's key. Raises CallError UNAUTHENTICATED."""
        presented = presented_key(metadata)
        if not presented:
            if self.is_required:
                raise _unknown("no API key is given; send it as authorization: Bearer KEY")
            return ANYBODY
        found = self._find(hashlib.sha256(presented).digest())
        if found is None:
            if self.is_required:
                raise _unknown("the API key is not known")
            return ANYBODY
        if why := self._why_not(found):
            raise why
        return Caller(found)

    @asynccontextmanager
    async def tenure(self, caller: Caller) -> AsyncIterator[None]:
        """Run what is within as long as the caller's key stands. Raises CallError UNAUTHENTICATED once it does not."""
        if caller.key is None:
            yield
            return
        async with self._tenure.stay(caller.key):
            yield

    @asynccontextmanager
    async def admit(self, metadata: Any, *, num_requests: int = 1) -> AsyncIterator[Caller]:
        """Let one request in, which runs as long as the context. Raises CallError, LimitReached among them.

        Of the limits it takes as much as so many requests, if there is room for one.
        """
        caller = self.identify(metadata)
        if caller.key is None:
            yield caller
            return
        with self._running_of(caller.key):
            if caller.key.quota.is_open:
                yield caller
                return
            async with self.counting.admit(caller.key, num_requests) as admission:
                yield Caller(caller.key, admission)

    @contextmanager
    def _running_of(self, key: ApiKey) -> Iterator[None]:
        """Count a request that runs. Raises CallError if there are too many."""
        running = self._running.get(key.name, 0)
        if key.max_concurrent is not None and running >= key.max_concurrent:
            words = f"the API key {key.name} may run {key.max_concurrent} requests at the same time"
            raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, words, _BUSY_RETRY_S, "key_limit")
        self._running[key.name] = running + 1
        try:
            yield
        finally:
            self._running[key.name] -= 1
            if not self._running[key.name]:
                del self._running[key.name]

    def _find(self, digest: bytes) -> ApiKey | None:
        """Return the key with this digest; files go first, and all of them are always compared."""
        found = [key for key in self._keys.values() if hmac.compare_digest(digest, key.digest)]
        return found[0] if found else self.objects.find(digest)

    def _why_not(self, key: ApiKey) -> CallError | None:
        """Return why nobody may call with a key that was let in; None if they may."""
        found = self._find(key.digest)
        if found is None or found.name != key.name:
            return _ended(f"the API key {key.name} was revoked")
        if found.expires and found.expires <= self.now():
            return _ended(f"the API key {key.name} expired at {found.expires:%Y-%m-%dT%H:%M:%SZ}")
        return None

    def _files(self) -> list[Path]:
        """Return one path for each key; what begins with a dot is how Kubernetes swaps a Secret's content."""
        found = self.directory.iterdir() if self.directory else ()
        return sorted(path for path in found if not path.name.startswith("."))

    def _reread(self, path: Path, unread: list[OSError]) -> ApiKey | None:
        try:
            return read_key(path)
        except BadKeyFile as error:
            _LOG.error("the API key %s stays as it was: %s", path.name, error)  # the sentence says all
        except OSError as error:
            unread.append(error)
        return self._keys.get(path.name)


def _unknown(message: str) -> CallError:
    return CallError(grpc.StatusCode.UNAUTHENTICATED, message)


def _ended(message: str) -> CallError:
    return CallError(grpc.StatusCode.UNAUTHENTICATED, message, reason="key_ended")


@lru_cache(maxsize=1024)  # a peer sends more than one request
def _host(peer: str) -> str:
    """Return the address without scheme and port, written in one way: `ipv4:10.0.0.1:5000` is 10.0.0.1."""
    host = unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]").partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return host or peer
    return str(getattr(address, "ipv4_mapped", None) or address)
