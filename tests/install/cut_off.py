"""A network namespace that has a loopback and nothing else: no route leads out, and one door leads to the API server.

The door is a listening socket of the inner loopback that this process holds: what arrives there is handed on from here,
outside. Sockets with a name in the file system, such as containerd's, can be reached from inside as from everywhere.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tools.kubectl import Cluster, run

CHUNK_BYTES = 1 << 16
ALONE = ("unshare", "--net", "--")
LISTEN = """
import socket, sys
door = socket.create_server(("127.0.0.1", 0), backlog=64)
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"."], [door.fileno()])
"""


@dataclass(frozen=True)
class CutOff:
    """Runs commands inside, with an environment of their own."""

    namespace: Path
    env: Mapping[str, str]
    folder: Path

    def run(self, *command: str | Path) -> str:
        """Run a command and return what it printed. Raises CommandFailed."""
        words = [*inside(self.namespace), "env", "-i", "-C", self.folder]
        return run([*words, *(f"{name}={value}" for name, value in self.env.items()), *command])


def inside(namespace: Path) -> list[str]:
    """Return what goes before a command that is to run in the network namespace."""
    return ["nsenter", f"--net={namespace}", "--"]


@contextmanager
def cut_off(cluster: Cluster, folder: Path, home: Path) -> Iterator[CutOff]:
    """Make the namespace and a kubeconfig for its door; commands run in the folder."""
    with ExitStack() as stack:
        keeper = stack.enter_context(
            subprocess.Popen([*ALONE, "sh", "-c", "echo up; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        stack.callback(keeper.terminate)
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"up\n"
        namespace = Path(f"/proc/{keeper.pid}/ns/net")
        run([*inside(namespace), "ip", "link", "set", "lo", "up"])
        config = json.loads(cluster.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        api = config["clusters"][0]["cluster"]
        door = stack.enter_context(_listener(namespace))
        outside = urlsplit(api["server"])
        stack.enter_context(_handing_on(door, (str(outside.hostname), outside.port or 443)))
        api["server"] = f"https://127.0.0.1:{door.getsockname()[1]}"
        kubeconfig = home / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        kubeconfig.chmod(0o600)
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(kubeconfig), "LANG": "C.UTF-8"}
        yield CutOff(namespace, env, folder)


def _listener(namespace: Path) -> socket.socket:
    """Return a socket that listens on the namespace's loopback."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = str(theirs.fileno())
        command = [*inside(namespace), sys.executable, "-c", LISTEN, number]
        subprocess.run(command, check=True, pass_fds=[theirs.fileno()])
        _, [found], *_ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=found)


@contextmanager
def _handing_on(door: socket.socket, target: tuple[str, int]) -> Iterator[None]:
    """Hand every connection on while the context lasts."""
    opened: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):  # the door was shut
            while True:
                inner, _ = door.accept()
                outer = socket.create_connection(target)
                opened.extend((inner, outer))
                for ends in ((inner, outer), (outer, inner)):
                    threading.Thread(target=_pump, args=ends, daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in opened:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until an end; then say so to the other side."""
    with suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            sink.sendall(chunk)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
