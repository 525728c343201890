"""What a call says of its caller beside the message: role, cache salt, deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc

from dormouse_api.auth import Proofs
from dormouse_api.limits import MAX_CACHE_SALT_CHARS
from dormouse_api.names import METADATA_CACHE_SALT, METADATA_CALLER, Role
from dormouse_api.status import CallError
from dormouse_api.tickets import MetadataPairs
from dormouse_worker.front.refusing import check_plain, refuse

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long a call may take, because the worker says so."""

    seconds: float
    why: str  # the sentence for the caller when it has passed


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The worker's own deadlines."""

    default_s: float  # for calls without a deadline
    max_s: float  # what a longer deadline is cut to

    def limit(self, remaining_s: float | None) -> TimeLimit | None:
        """Return the limit for a call with so much time left (None: no deadline); None if its own is shorter."""
        if remaining_s is None:
            what = "the time of a request without a deadline (--default-timeout-seconds)"
            return TimeLimit(self.default_s, f"the request took longer than {self.default_s:g} s, {what}")
        if remaining_s > self.max_s:
            what = "the longest that this worker lets a request take (--max-timeout-seconds)"
            return TimeLimit(self.max_s, f"the request took longer than {self.max_s:g} s, {what}")
        return None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and with which rights."""

    name: str  # whoever shares it shares a turn: what the gateway calls him, else where the call comes from
    is_gateway: bool
    cache_salt: str  # only requests of one salt share cached prefixes
    time_limit: TimeLimit | None
    is_in_pod: bool = False  # over the pod's own socket, from its HTTP API: what came there can go nowhere else


def read_caller(metadata: MetadataPairs | None, proofs: Proofs, time_limit: TimeLimit | None, *, peer: str) -> Caller:
    """Return what the metadata says.

    Raises CallError on a salt that is not a gateway's: INVALID_ARGUMENT, and UNAVAILABLE where a gateway tries to prove
    itself, so that it asks another worker.
    """
    is_gateway = proofs.role_of(metadata) is Role.GATEWAY
    is_salted = any(key == METADATA_CACHE_SALT for key, _ in metadata or ())
    if is_salted and not is_gateway and (why := proofs.complaint(metadata)):
        raise CallError(grpc.StatusCode.UNAVAILABLE, f"a gateway's ticket is not taken by this worker: {why}")
    salts = [value for key, value in metadata or () if key == METADATA_CACHE_SALT]
    salt = _read_salt(salts, is_gateway=is_gateway)
    return Caller(_name(metadata, peer, is_gateway=is_gateway), is_gateway, salt, time_limit, is_in_pod(peer))


def is_in_pod(peer: str) -> bool:
    """Return whether a call came over a socket of the pod's own."""
    return peer.startswith("unix:")


async def in_time(work: Awaitable[T], time_limit: TimeLimit | None) -> T:
    """Return what the work returns. Raises CallError DEADLINE_EXCEEDED if it takes longer than the worker allows."""
    try:
        async with asyncio.timeout(time_limit.seconds if time_limit else None):
            return await work
    except TimeoutError as error:
        assert time_limit is not None, "else there is no limit"
        raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, time_limit.why) from error


def caller_name(metadata: MetadataPairs | None, proofs: Proofs, peer: str) -> str:
    """Return what tells callers apart where nothing else counts."""
    return _name(metadata, peer, is_gateway=proofs.role_of(metadata) is Role.GATEWAY)


def _name(metadata: MetadataPairs | None, peer: str, *, is_gateway: bool) -> str:
    """Return what the gateway calls the caller; one of before sends the salt only. What others say does not count."""
    said = {key: str(value) for key, value in metadata or () if is_gateway}
    return said.get(METADATA_CALLER) or said.get(METADATA_CACHE_SALT) or _host(peer)


def _host(peer: str) -> str:
    """Return the address without its port: connections cost nothing, one caller may have many."""
    return peer.rpartition(":")[0] or peer


def _read_salt(salts: Sequence[str | bytes], *, is_gateway: bool) -> str:
    if not salts:
        return ""
    if not is_gateway:
        refuse(METADATA_CACHE_SALT, "set", "only by the gateway")
    if len(salts) > 1:
        refuse(METADATA_CACHE_SALT, f"given {len(salts)} times", "once")
    salt = salts[0] if isinstance(salts[0], str) else salts[0].decode("latin-1")
    check_plain(METADATA_CACHE_SALT, salt, MAX_CACHE_SALT_CHARS)
    return salt
