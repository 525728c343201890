"""Pods that try to connect, in an installed release and beside it: who they are, what they try, what they find."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dormouse_api.names import (
    COMPONENT_FOLLOWER,
    COMPONENT_WORKER,
    CONTROL_PORT,
    GROUP_PORT,
    HTTP_PORT,
    INFERENCE_PORT,
    METRICS_PORT,
)
from tests.install.conftest import Installed
from tools.release import fullname

Found = Literal["open", "refused", "silent"]  # connected; answered that nobody listens; nothing within two seconds
DNS = "10.244.0.1"  # localkube's node: the name server, and the API server behind its Service
API_SERVER = "10.96.0.1"
TRY = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
QUESTION = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7cluster\\5local\\0\\0\\1\\0\\1"
def found(way):
    host, port, protocol = way
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as there:
        there.settimeout(2)
        try:
            there.connect((host, port))
            if kind == socket.SOCK_DGRAM:
                there.send(QUESTION)
                there.recv(512)
        except TimeoutError:
            return "silent"
        except ConnectionRefusedError:
            return "refused"
    return "open"
ways = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(ways)) as pool:
    print(json.dumps(list(pool.map(found, ways))))
"""


class Way(NamedTuple):
    """What is tried."""

    host: str
    port: int
    protocol: str = "TCP"


@dataclass(frozen=True)
class Place:
    """A pod from which something is tried."""

    namespace: str
    pod: str
    address: str


def idle_pod(image: str, name: str) -> dict[str, Any]:
    """Return a pod that waits, as the restricted Pod Security standard wants it."""
    container = {
        "name": "idle",
        "image": image,
        "command": ["python", "-c", "import signal; signal.pause()"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    context = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": context, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True)
class Town:
    """An installed release that serves `steady`, `other` and the group `pair`, with idle pods beside them."""

    installed: Installed
    elsewhere: str  # a namespace that nobody watches

    def places(self) -> dict[str, Place]:
        """Return the pods that there are now."""
        own, system, cluster = self.installed.namespace, self.installed.release.namespace, self.installed.cluster
        return {
            "gateway": self._one(system, _component("gateway")),
            "operator": self._one(system, _component("operator")),
            "steady": self._one(own, _worker("steady")),
            "other": self._one(own, _worker("other")),
            "leader": self._one(own, _worker("pair")),
            "follower": self._one(own, _component(COMPONENT_FOLLOWER)),
            "neighbour": _place(cluster.get("pod", "idle", own)),
            "stranger": _place(cluster.get("pod", "idle", self.elsewhere)),
        }

    def _one(self, namespace: str, selector: str) -> Place:
        """Return a pod that runs and stays; of several the first."""
        pods = self.installed.cluster.list("pods", namespace, selector)
        staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("podIP")]
        assert staying, f"no pod of {selector} in {namespace}"
        return _place(min(staying, key=lambda pod: str(pod["metadata"]["name"])))

    def targets(self, places: Mapping[str, Place]) -> dict[str, Way]:
        """Return every door that there is, and some behind which nobody listens, by name."""
        own = self.installed
        gateways, steady = f"{fullname(own.release.name)}-gateway", own.namespace
        doors = {"50051": INFERENCE_PORT, "50052": CONTROL_PORT, "8080": METRICS_PORT}
        found = {
            f"{who}:{name}": Way(places[who].address, port)
            for who in ("steady", "other", "leader", "follower")
            for name, port in {**doors, "ranks": GROUP_PORT}.items()
        }
        found |= {f"gateway:{name}": Way(places["gateway"].address, port) for name, port in doors.items()}
        return found | {
            "gateway:8000": Way(places["gateway"].address, HTTP_PORT),
            "gateway's Service": Way(self._service(gateways, own.release.namespace), INFERENCE_PORT),
            "steady's Service": Way(self._service("steady", steady), INFERENCE_PORT),
            "operator:8080": Way(places["operator"].address, METRICS_PORT),
            "operator:50052": Way(places["operator"].address, CONTROL_PORT),
            "stranger:443": Way(places["stranger"].address, 443),
            "stranger:8443": Way(places["stranger"].address, 8443),
            "API server": Way(API_SERVER, 443),
            "DNS": Way(DNS, 53),
            "DNS by UDP": Way(DNS, 53, "UDP"),
        }

    def _service(self, name: str, namespace: str) -> str:
        address: str = self.installed.cluster.get("service", name, namespace)["spec"]["clusterIP"]
        return address

    def found(self) -> dict[str, dict[str, Found]]:
        """Try everything from everywhere: what was found by who tried and at what."""
        places = self.places()
        targets = self.targets(places)
        with ThreadPoolExecutor(len(places)) as pool:
            answers = list(pool.map(lambda place: self._found_from(place, targets.values()), places.values()))
        return {who: dict(zip(targets, answer, strict=True)) for who, answer in zip(places, answers, strict=True)}

    def _found_from(self, place: Place, ways: Iterable[Way]) -> list[Found]:
        program = ("--", "python", "-c", TRY, json.dumps(list(ways)))
        said: list[Found] = json.loads(
            self.installed.cluster.kubectl("exec", "-n", place.namespace, place.pod, *program)
        )
        return said


@contextmanager
def a_town(installed: Installed) -> Iterator[Town]:
    """Make the idle pods: one beside the models, one in another namespace, which goes when the context ends."""
    cluster, elsewhere = installed.cluster, f"{installed.release.name}-elsewhere"
    [gateway, *_] = cluster.list("pods", installed.release.namespace, _component("gateway"))
    image = gateway["spec"]["containers"][0]["image"]
    cluster.create_namespace(elsewhere)
    try:
        for namespace in (installed.namespace, elsewhere):
            cluster.apply(idle_pod(image, "idle"), namespace)
            cluster.wait("pod/idle", "condition=Ready", namespace)
        yield Town(installed, elsewhere)
    finally:
        cluster.kubectl("delete", "namespace", elsewhere, "--wait=false")


def _component(name: str) -> str:
    return f"app.kubernetes.io/component={name}"


def _worker(deployment: str) -> str:
    return f"{_component(COMPONENT_WORKER)},inference.dormouse.dev/deployment={deployment}"


def _place(pod: Mapping[str, Any]) -> Place:
    return Place(pod["metadata"]["namespace"], pod["metadata"]["name"], pod["status"]["podIP"])
