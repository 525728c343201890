"""One run of the driver: sockets, class and slice come in this order and go in the other, whatever happens between."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import grpc

from localkube import processes
from localkube.errors import ApiError, ComponentError, HostError
from localkube.gpus import folders, plugin_pb2_grpc, registration_pb2_grpc
from localkube.gpus.driver import Plugin, Registration
from localkube.gpus.objects import CLAIMS_PATH, CLASS_PATH, DRIVER, Gpus, allocated

REGISTERED_WITHIN_S = 60.0
CLAIMS_END_WITHIN_S = 30.0
POLL_S = 0.2
NUM_THREADS = 4
GRACE_S = 2.0  # for answers that are under way


class Api(Protocol):
    """What is asked of the API server; each call may raise ApiError."""

    def get(self, path: str) -> Any:
        """Return an object or a list."""

    def apply(self, path: str, value: dict[str, Any]) -> None:
        """Create an object or bring it to this form."""

    def delete(self, path: str) -> None:
        """Delete an object; ApiError with status 404 if it is gone."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Asked to end: first in good order, then, if asked again or by whoever ends the cluster, at once."""

    asked: threading.Event = field(default_factory=threading.Event)
    urged: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        """Ask once more."""
        (self.urged if self.asked.is_set() else self.asked).set()

    def urge(self) -> None:
        """Ask to end at once."""
        self.asked.set()
        self.urged.set()

    def listen(self) -> None:
        """Let Ctrl-C ask, and SIGTERM urge: `down` sends it, and with the cluster the pods end that hold claims."""
        signal.signal(signal.SIGINT, lambda *_: self.ask())
        signal.signal(signal.SIGTERM, lambda *_: self.urge())


@dataclass(frozen=True, slots=True)
class Offer:
    """The GPUs of one node, for as long as `run` runs.

    `kubelet` is the kubelet's root directory; `stand_ins` gets a folder for each GPU, for pods to mount.
    """

    api: Api
    kubelet: Path
    stand_ins: Path
    gpus: Gpus
    log: Callable[[str], None]
    look_every_s: float = 5.0  # a kubelet that starts again removes the slices of its node

    def run(self, stop: Stop) -> None:
        """Offer the GPUs until asked to stop.

        Raises:
            ApiError: the API server does not answer, knows no such node, or refused the class or the slice.
            ComponentError: the kubelet did not take the driver.
        """
        self._node_uid()
        with self._served() as registration:
            if not registration.wait(REGISTERED_WITHIN_S, stop.asked.is_set):
                return
            folders.make(self.stand_ins, self.gpus)
            with self._published():
                offered = f"{DRIVER} offers {', '.join(self.gpus.names)} of {self.gpus.memory}"
                self.log(f"{offered}, to pods that mount {self.stand_ins}; end it with Ctrl-C")
                while not stop.asked.wait(self.look_every_s):
                    self._mend()
            if not self._wait_for_claims(stop):
                folders.remove(self.stand_ins)

    @contextmanager
    def _served(self) -> Iterator[Registration]:
        """Answer the kubelet. The socket that it watches comes last and goes first: that registers and unregisters."""
        endpoint = self.kubelet / "plugins" / DRIVER / "dra.sock"
        registration = Registration(endpoint)
        plugin = partial(plugin_pb2_grpc.add_DRAPluginServicer_to_server, Plugin(self.api, self.gpus))
        registrar = partial(registration_pb2_grpc.add_RegistrationServicer_to_server, registration)
        with (
            folder(endpoint.parent),
            listening(endpoint, plugin),
            listening(self.kubelet / "plugins_registry" / f"{DRIVER}.sock", registrar),
        ):
            yield registration

    @contextmanager
    def _published(self) -> Iterator[None]:
        """Tell the scheduler of the GPUs. An older slice, of a driver that was killed, makes room first."""
        self._delete(self.gpus.slice_path)
        try:
            self._publish()
            yield
        finally:
            self._delete(self.gpus.slice_path)
            self._delete(CLASS_PATH)

    def _publish(self) -> None:
        self.api.apply(CLASS_PATH, self.gpus.device_class())
        self.api.apply(self.gpus.slice_path, self.gpus.resource_slice(self._node_uid()))

    def _node_uid(self) -> str:
        return str(self.api.get(f"/api/v1/nodes/{self.gpus.node}")["metadata"]["uid"])

    def _mend(self) -> None:
        """Publish again what is gone; whatever goes wrong goes right at a later look."""
        try:
            if not self._is_published():
                self._publish()
        except ApiError as error:
            self.log(f"will be published again: {error}")

    def _is_published(self) -> bool:
        try:
            for path in (CLASS_PATH, self.gpus.slice_path):
                self.api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _delete(self, path: str) -> None:
        try:
            self.api.delete(path)
        except ApiError as error:
            if error.status != 404:
                raise

    def claims(self) -> list[str]:
        """Return which claims have devices of ours, as NAMESPACE/NAME."""
        claims = self.api.get(CLAIMS_PATH)["items"]
        return [f"{c['metadata']['namespace']}/{c['metadata']['name']}" for c in claims if allocated(c)]

    def _wait_for_claims(self, stop: Stop) -> list[str]:
        """Serve on while pods have devices: without a driver the kubelet cannot end such a pod. Return who has yet."""
        if not (held := self.claims()):
            return held
        self.log(f"no new claims; waiting for the end of {', '.join(held)} (again Ctrl-C: not waiting)")
        deadline_s = time.monotonic() + CLAIMS_END_WITHIN_S
        while (held := self.claims()) and time.monotonic() < deadline_s and not stop.urged.wait(POLL_S):
            pass
        if held:
            self.log(f"pods with {', '.join(held)} cannot end before these GPUs are offered again")
        return held


@contextmanager
def folder(path: Path) -> Iterator[None]:
    """Make a folder and remove it."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):  # the cluster may have ended before
            path.rmdir()


@contextmanager
def listening(path: Path, add_servicer: Callable[[grpc.Server], None]) -> Iterator[None]:
    """Serve at a Unix socket, whoever left a file there; it is gone in the end. Raises ComponentError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(NUM_THREADS))
    add_servicer(server)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise ComponentError(f"{DRIVER} cannot listen at {path}: {error}") from error
    server.start()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        server.stop(GRACE_S).wait()


@contextmanager
def alone(pid_file: Path) -> Iterator[None]:
    """Be the only driver of this cluster, and one that `down` ends with it. Raises HostError if there is another."""
    if processes.is_alive(other := processes.read_pid_file(pid_file)):
        assert other is not None
        raise HostError(f"pid {other.pid} offers GPUs already; end it first")
    own = processes.identify(os.getpid())
    assert own is not None
    processes.write_pid_file(pid_file, own)
    try:
        yield
    finally:
        pid_file.unlink(missing_ok=True)
