"""A bridge with pods in network namespaces of a test's own, wired as localkube's are; who connects to whom there."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import NamedTuple

from localkube import guards, nft, spec
from localkube.policies import Guard

NODE = "10.0.0.254"
SERVICE = "10.96.0.9"
NODE_SERVICE = "10.96.0.1"
SERVE = """
import socket, threading
def tcp(port):
    server = socket.create_server(("0.0.0.0", port))
    def serve():
        while True:
            server.accept()[0].close()
    return serve
def udp(port):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("0.0.0.0", port))
    def serve():
        while True:
            server.sendto(b"", server.recvfrom(9)[1])
    return serve
serving = [tcp(8000), tcp(9000), udp(53), udp(8000)]
print("up", flush=True)
for serve in serving:
    threading.Thread(target=serve).start()
"""
TRY = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def passes(way, source_port):
    host, port, protocol = way
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as there:
        there.bind(("", source_port))
        there.settimeout(1)
        try:
            there.connect((host, port))
            return kind == socket.SOCK_STREAM or (there.send(b"x"), there.recv(9)) != ()
        except TimeoutError:
            return False
ways, first_port = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(ways)) as pool:
    print(json.dumps(list(pool.map(passes, ways, range(first_port, first_port + len(ways))))))
"""


class Way(NamedTuple):
    """A connection that is tried."""

    host: str
    port: int
    protocol: str = "TCP"


def run(*command: str, stdin: str | None = None) -> str:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


class Wires:
    """The node's namespace and those of the pods, by address."""

    def __init__(self, stack: ExitStack, addresses: Iterable[str]) -> None:
        self._stack = stack
        self._prefix = f"t{secrets.token_hex(2)}"
        self._source_ports = count(10_000, 100)  # none twice: the kernel lets on what it knows from before
        self.node = self._namespace("node")
        run("ip", "-n", self.node, "link", "add", spec.BRIDGE, "type", "bridge")
        run("ip", "-n", self.node, "address", "add", f"{NODE}/24", "dev", spec.BRIDGE)
        run("ip", "-n", self.node, "link", "set", spec.BRIDGE, "up")
        run("ip", "netns", "exec", self.node, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.pods = {address: self._pod(f"p{index}", address) for index, address in enumerate(addresses)}
        for place in (self.node, *self.pods.values()):
            self._serve(place)

    def _namespace(self, name: str) -> str:
        place = f"{self._prefix}-{name}"
        run("ip", "netns", "add", place)
        self._stack.callback(run, "ip", "netns", "delete", place)
        run("ip", "-n", place, "link", "set", "lo", "up")
        return place

    def _pod(self, name: str, address: str) -> str:
        place = self._namespace(name)
        run("ip", "-n", self.node, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", place)
        run("ip", "-n", self.node, "link", "set", name, "master", spec.BRIDGE, "up")
        run("ip", "-n", self.node, "link", "set", name, "type", "bridge_slave", "hairpin", "on")
        run("ip", "-n", place, "address", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", place, "link", "set", "eth0", "up")
        run("ip", "-n", place, "route", "add", "default", "via", NODE)
        return place

    def _serve(self, place: str) -> None:
        command = ["ip", "netns", "exec", place, sys.executable, "-c", SERVE]
        server = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self._stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"

    def make_services(self, target: str) -> None:
        """Make an address that leads to a pod, and one that leads to the node, as kube-proxy does."""
        run(
            *("ip", "netns", "exec", self.node, "nft", "-f", "-"),
            stdin=f"""table ip services {{
              chain before {{
                type nat hook prerouting priority dstnat
                ip daddr {SERVICE} tcp dport 80 dnat to {target}:8000
                ip daddr {NODE_SERVICE} tcp dport 80 dnat to {NODE}:8000
              }}
              chain after {{
                type nat hook postrouting priority srcnat
                ip saddr {target} ip daddr {target} masquerade
              }}
            }}""",
        )

    def load(self, found: Iterable[Guard]) -> None:
        """Have the node enforce these guards."""
        guards.load_table(("nsenter", f"--net=/run/netns/{self.node}", "--"), nft.table(found, (NODE,)))

    def tried(self, ways: Mapping[str, list[Way]]) -> dict[tuple[str, Way], bool]:
        """Try to connect, by address of who connects (the node's included); tell what passes."""
        with ThreadPoolExecutor(len(ways)) as pool:
            answers = pool.map(self._try, ways.items())
        return {key: passes for answer in answers for key, passes in answer.items()}

    def _try(self, given: tuple[str, list[Way]]) -> dict[tuple[str, Way], bool]:
        source, ways = given
        place = self.pods.get(source, self.node)
        given_ways = json.dumps([ways, next(self._source_ports)])
        said = run("ip", "netns", "exec", place, sys.executable, "-c", TRY, given_ways)
        return {(source, way): passes for way, passes in zip(ways, json.loads(said), strict=True)}


@contextmanager
def wired(addresses: Iterable[str]) -> Iterator[Wires]:
    """Make the wires; they go when the context ends."""
    with ExitStack() as stack:
        yield Wires(stack, addresses)
