"""`python -m dormouse_gateway.beside`: the HTTP API of one worker pod, for requests that a gateway of ours let in.

It is a container of the pod. Other people's gateways send it what our picker sent here, with a ticket that the pod's
worker would take itself. It holds no secret and no torch, and keeps no keys; whatever shows no such ticket is refused,
unless the pool fails open. It is stopped after the worker.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import uvloop

from dormouse_api.listening import listen
from dormouse_api.names import (
    HTTP_PORT,
    METADATA_CACHE_SALT,
    METADATA_CALLER,
    METADATA_TICKET,
    Role,
)
from dormouse_api.outlets import unhindered_outputs
from dormouse_api.status import CallError
from dormouse_api.tickets import BadKey, TicketCheck, public_check
from dormouse_gateway.clients.keys import ANYBODY, Caller, Keyring
from dormouse_gateway.clients.requests import FORWARDED, Metadata
from dormouse_gateway.model import Meant
from dormouse_gateway.router import Router
from dormouse_gateway.standalone import Door, Trust

_HOLD_S = 2  # the picker held the request before: what is left is that a worker tells us a little later than it
_AGAIN_S = 1.0  # another pod is found for it then
_ASTRAY = (
    "Dormouse's endpoint picker let this request in to another pod, and the gateway before it sent it to this one; "
    "send it again"
)
_SAID = (METADATA_TICKET, METADATA_CALLER, METADATA_CACHE_SALT)


@dataclass(slots=True)
class LetIn(Keyring):
    """Whom a picker let in; with `fails_open` everybody, as if no key were asked for anywhere."""

    check: TicketCheck = field(default_factory=lambda: TicketCheck((), {}))
    fails_open: bool = False

    def is_proven(self, metadata: Any) -> bool:
        """Return whether a gateway of ours says so, to this very pod."""
        return self.check.role_of(metadata) is Role.GATEWAY

    def identify(self, metadata: Any) -> Caller:
        """See Keyring. Raises CallError UNAUTHENTICATED; UNAVAILABLE for whom a picker let in, but not here."""
        if self.fails_open or self.is_proven(metadata):
            return ANYBODY
        if self.check.is_astray(metadata):
            raise CallError(grpc.StatusCode.UNAVAILABLE, _ASTRAY, _AGAIN_S)
        why = self.check.complaint(metadata) or "it shows no ticket"
        words = f"this worker takes requests that Dormouse's endpoint picker sent here, and no others: {why}"
        raise CallError(grpc.StatusCode.UNAUTHENTICATED, words)

    def forward(self, given: Any, *, caller: str) -> Metadata:
        """Return what the worker is told: all that a gateway said, or the trace alone."""
        del caller  # everybody comes from the same few gateways
        taken = {*FORWARDED, *_SAID} if self.is_proven(given) else FORWARDED
        return tuple((key, value) for key, value in given or () if key in taken)


class OneModel(Router):
    """Knows one model, and leaves all other names to its worker: they may be adapters."""

    def __init__(self, names: Sequence[str], **how: Any) -> None:
        """Take the model's names, the worker's own first."""
        super().__init__(**how)
        self._names = names

    def resolve(self, model: str, caller: Caller = ANYBODY) -> Meant:
        """See Router."""
        known = super().resolve(self._names[0], caller)
        return known if model in self._names else Meant(known.deployment, model)


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line, and two variables that the operator sets."""

    names: tuple[str, ...]
    port: int
    worker: tuple[str, int]  # host and port, or the path of a socket and 0
    let_in: LetIn


def read_flags(argv: Sequence[str], env: Mapping[str, str]) -> Flags:
    """Read both. Ends the program with a sentence for what cannot be used."""
    parser = argparse.ArgumentParser("dormouse_gateway.beside", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=HTTP_PORT, help="where to listen (default: %(default)s)")
    parser.add_argument("--worker", required=True, metavar="PATH", help="socket of the pod's worker")
    parser.add_argument("--fail-open", action="store_true", help="serve requests that no picker has let in, too")
    parser.add_argument("names", nargs="+", help="of the model, first the one by which its worker knows it")
    given = parser.parse_args(argv)
    try:
        checks = [public_check(key) for key in env.get("DORMOUSE_GATEWAY_KEY", "").split(",") if key]
    except BadKey as error:
        parser.error(f"DORMOUSE_GATEWAY_KEY: {error}")
    check = TicketCheck([env.get("DORMOUSE_POD_UID", "")], {Role.GATEWAY: checks})
    let_in = LetIn(check=check, fails_open=given.fail_open)
    return Flags(tuple(given.names), given.port, (given.worker, 0), let_in)


def make_door(flags: Flags) -> Door:
    """Return the door, not yet started. Needs a running event loop."""
    make_router: Callable[..., Router] = partial(OneModel, flags.names)
    trust = Trust(flags.let_in, flags.let_in.forward)
    return Door(flags.names[:1], flags.worker, trust=trust, hold_s=_HOLD_S, make_router=make_router)


async def run(flags: Flags) -> None:
    """Serve until SIGTERM."""
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    door = make_door(flags)
    await door.start(listen("[::]", flags.port))
    await over.wait()
    await door.stop()


def main() -> None:
    """Run."""
    flags = read_flags(sys.argv[1:], os.environ)
    with unhindered_outputs():
        logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        uvloop.run(run(flags))


if __name__ == "__main__":
    main()
