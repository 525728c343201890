"""How the ranks of a group find each other: at a store that the first one holds, on one address and port."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it by a star

from dormouse_worker.common.errors import InvalidSettings, RankLost
from dormouse_worker.common.layout import Layout
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.model.parallel.torch_communicator import TorchCommunicator

TIMEOUT_S = 30.0  # of each exchange; a step takes a second at most, a wake's first pass waits for the slowest rank
HOST, PORT, TIMEOUT = "MASTER_ADDR", "MASTER_PORT", "DORMOUSE_GROUP_TIMEOUT_S"  # in the environment
_CPU = torch.device("cpu")


def connect(
    layout: Layout, host: str, port: int, timeout_s: float = TIMEOUT_S, device: torch.device = _CPU
) -> Communicator:
    """Return when all ranks of the group are connected. Raises RankLost naming those that did not come in time.

    Rank 0 listens on this address alone. Each exchange from then on has the same time.
    """
    if layout.world_size == 1:
        return ALONE
    timeout = timedelta(seconds=timeout_s)
    store = _open_store(layout, host, port, timeout)
    store.set(_name(layout.rank), "here")
    names = {rank: _name(rank) for rank in range(layout.world_size)}
    try:
        store.wait(list(names.values()), timeout)
    except RuntimeError as error:
        missing = [str(rank) for rank, name in names.items() if not _is_there(store, name)]
        raise RankLost(
            f"rank {layout.rank} of {layout.world_size}: rank {', '.join(missing)} did not come to {host}:{port} "
            f"within {timeout_s:g} s"
        ) from error
    return TorchCommunicator(layout, store, device, timeout_s)


def connect_from_environment(
    layout: Layout, device: torch.device, environ: Mapping[str, str] = os.environ
) -> Communicator:
    """Connect as the variables say that whoever started this process has set. Raises InvalidSettings, RankLost."""
    host, port, timeout_s = environ.get(HOST, ""), environ.get(PORT, ""), environ.get(TIMEOUT, f"{TIMEOUT_S:g}")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidSettings(
            f"{HOST} is {host!r} and {PORT} {port!r}; a group of {layout.world_size} ranks needs an address and a port"
        )
    if not timeout_s.isdecimal() or not int(timeout_s):
        raise InvalidSettings(f"{TIMEOUT} is {timeout_s!r}; a whole number of seconds above 0 is needed")
    return connect(layout, host, int(port), int(timeout_s), device)


def _open_store(layout: Layout, host: str, port: int, timeout: timedelta) -> TCPStore:
    """Return the store. Raises InvalidSettings where rank 0 cannot listen, RankLost where it is not reached."""
    listener = _listen(host, port) if layout.rank == 0 else None
    try:
        return TCPStore(
            host,
            port,
            is_master=listener is not None,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=None if listener is None else listener.detach(),
        )
    except RuntimeError as error:
        raise RankLost(f"rank {layout.rank}: rank 0 is not reached at {host}:{port}: {error}") from error


def _listen(host: str, port: int) -> socket.socket:
    """Listen on one address: torch would on all of them."""
    try:
        return socket.create_server((host, port), family=socket.getaddrinfo(host, port)[0][0])
    except OSError as error:
        raise InvalidSettings(f"rank 0 cannot listen on {host}:{port}: {error}") from error


def _is_there(store: TCPStore, name: str) -> bool:
    try:
        return bool(store.check([name]))
    except RuntimeError:  # the store itself is gone
        return False


def _name(rank: int) -> str:
    return f"rank {rank}"
