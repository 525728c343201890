"""How a group comes together: the leader opens its doors, starts the ranks of its own pod and waits for all."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dormouse_api.listening import hold_port
from dormouse_worker.common.errors import GroupPortTaken, RankMissing
from dormouse_worker.common.group import LOOPBACK, GroupPlace
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.environment import interface_of, meeting_variables, timeout_variables
from dormouse_worker.executor.ranks.admission import Expected
from dormouse_worker.executor.ranks.connection import RankConnection
from dormouse_worker.executor.ranks.handshake import make_hello
from dormouse_worker.executor.ranks.listener import RankDoor, listen_tcp, listen_unix
from dormouse_worker.executor.ranks.messages import Welcome
from dormouse_worker.executor.ranks.spawn import LocalRanks
from dormouse_worker.executor.ranks.tls import tls_of

RESOLVE_PERIOD_S = 0.5  # between two attempts to find the address of our own name


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Where torch.distributed meets, and the door for ranks of other pods, if there are any."""

    address: str
    port: int
    listener: socket.socket | None = None


@contextmanager
def meeting_place(settings: EngineSettings, place: GroupPlace) -> Iterator[GroupPlace]:
    """Yield the place with the port at which ranks meet. Raises GroupPortTaken.

    While the block runs nobody else is given one that was chosen here: ranks load libraries before they listen there.
    """
    if settings.pipeline_parallel_size > 1 or place.master_port:
        yield place
        return
    try:
        holder = hold_port(LOOPBACK)
    except OSError as error:
        raise GroupPortTaken(f"rank 0: no port of {LOOPBACK} is free: {error}") from error
    with holder:
        yield replace(place, master_port=holder.getsockname()[1])


def gather(
    settings: EngineSettings,
    environ: Mapping[str, str],
    place: GroupPlace,
    local: LocalRanks,
    clock: Callable[[], float],
) -> dict[int, RankConnection]:
    """Return the connection of every rank, all of them welcomed. Raises GroupBroken of some kind, or OSError."""
    expected = Expected(
        settings.tensor_parallel_size, settings.pipeline_parallel_size, make_hello(0, settings, environ)
    )
    meeting = _open_meeting(settings, place, clock)
    directory = Path(tempfile.mkdtemp(prefix="dormouse-ranks-"))  # only we may enter
    socket_path = directory / "ranks.sock"
    listeners = [listen_unix(socket_path), *([meeting.listener] if meeting.listener else [])]
    door = RankDoor(listeners, expected, clock, tls_of(environ))
    try:
        local.start(range(settings.tensor_parallel_size), socket_path, settings, environ)
        connections = door.admit_all(place.start_timeout_s, local)
    finally:
        door.close()
        shutil.rmtree(directory, ignore_errors=True)
    variables = {
        **timeout_variables(place.patience_s),
        **meeting_variables(meeting.address, meeting.port, interface_of(meeting.address)),
    }
    for connection in connections.values():
        connection.say(Welcome(variables))
    return connections


def _open_meeting(settings: EngineSettings, place: GroupPlace, clock: Callable[[], float]) -> _Meeting:
    if settings.pipeline_parallel_size == 1:
        return _Meeting(LOOPBACK, place.master_port)
    listener = _await_address(place, clock)
    return _Meeting(str(listener.getsockname()[0]), place.master_port, listener)


def _await_address(place: GroupPlace, clock: Callable[[], float]) -> socket.socket:
    """Listen on our own name's address, trying again while it has none. Raises RankMissing, GroupPortTaken."""
    deadline_s = clock() + place.start_timeout_s
    while True:
        try:
            return listen_tcp(place.master_addr, place.message_port)
        except socket.gaierror as error:
            if clock() >= deadline_s:
                waited = f"for {place.start_timeout_s:g} s"
                raise RankMissing(f"rank 0: {place.master_addr!r} has had no address {waited}: {error}") from error
            time.sleep(RESOLVE_PERIOD_S)
