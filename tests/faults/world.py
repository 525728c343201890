"""What a fault test says: one namespace with a node, operators, and InferenceDeployments; and how it waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dormouse_api.testing_tickets import GATEWAY_SEED, OPERATOR_SEED
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, LEASES, PODS, SERVICES, Kind, Resource
from dormouse_kube.client import KubeClient
from dormouse_kube.reflector import ObjectKey, Reflector
from tests.faults.control_plane import ControlPlane
from tests.faults.gate import Gate
from tests.faults.kubelet import ProcessKubelet
from tests.faults.operator_process import OperatorProcess
from tests.faults.programs import clean_environment
from tests.faults.toxi import Toxiproxy
from tests.ports import free_port
from tools.bootstrap import ROOT

PATIENCE_S = 150.0  # how long a wait lasts before the test fails; on an idle machine most take one or two seconds
_LOOK_S = 0.1
_T = TypeVar("_T")


class World:
    """One namespace. Everything here looks through the API server, directly; only operators meet the faults."""

    def __init__(self, plane: ControlPlane, kube: KubeClient, namespace: str, folder: Path, toxiproxy: Path) -> None:
        """Take the control plane, an administrator's client, and a folder for logs."""
        self.plane = plane
        self.kube = kube
        self.namespace = namespace
        self.folder = folder
        self._toxiproxy = toxiproxy
        self._changed = asyncio.Event()
        self._operators: list[OperatorProcess] = []
        self._deployments = Reflector(kube, INFERENCE_DEPLOYMENTS, [namespace], on_change=self._note)
        self._pods = Reflector(kube, PODS, [namespace], on_change=self._note)
        self.kubelet = ProcessKubelet(kube, namespace, OPERATOR_SEED, self.touch)
        _write_tokens(folder / "tokens")

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[World]:
        """Keep the copies true while the context lasts."""
        tasks = [asyncio.create_task(self._deployments.run()), asyncio.create_task(self._pods.run())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # operators and what stands between them and the API server

    def operator(
        self, user: str = "operator-a", *, url: str = "", **settings: object
    ) -> AbstractAsyncContextManager[OperatorProcess]:
        """Return an operator that runs while the context lasts; settings are DORMOUSE_… in lower case."""
        directed = {
            "KUBECONFIG": self.plane.kubeconfig(user, url),
            "DORMOUSE_WATCH_NAMESPACES": self.namespace,
            "DORMOUSE_NAMESPACE": self.namespace,
            "DORMOUSE_POD_NAME": user,
            "DORMOUSE_POD_UID": user,
            "DORMOUSE_TOKENS_DIR": self.folder / "tokens",
            "DORMOUSE_METRICS_PORT": free_port(),
            "DORMOUSE_WORKER_IMAGE": "worker:1",
            "DORMOUSE_AGREEMENT_SECONDS": 2,
            "DORMOUSE_RESYNC_SECONDS": 5,
        }
        chosen = {f"DORMOUSE_{name.upper()}": value for name, value in settings.items()}
        env = clean_environment(**(directed | chosen))
        process = OperatorProcess(env, self.folder / f"{user}.log", self.touch)
        self._operators.append(process)
        return process.running()

    @asynccontextmanager
    async def gate(self) -> AsyncIterator[tuple[Gate, str]]:
        """Yield an HTTP proxy to the API server and its address."""
        gate = Gate(self.plane.url, self.plane.ca, self.touch)
        async with gate.open() as url:
            yield gate, url

    @asynccontextmanager
    async def network(self) -> AsyncIterator[tuple[Toxiproxy, str]]:
        """Yield a toxiproxy to the API server and its address."""
        upstream = f"127.0.0.1:{self.plane.port}"
        async with Toxiproxy.running(self._toxiproxy, upstream, self.folder / "toxiproxy.log") as proxy:
            yield proxy, f"https://127.0.0.1:{proxy.port}"

    # what users do

    async def apply(self, name: str, **spec: Any) -> str:
        """Create a deployment, or change fields of its spec."""
        body = {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu"}, **spec}
        obj = {"metadata": {"name": name, "namespace": self.namespace}, "spec": body}
        await self.kube.apply(INFERENCE_DEPLOYMENTS, obj, field_manager="user")
        return name

    async def create(self, name: str, spec: Mapping[str, Any]) -> None:
        """Create a deployment with exactly this spec."""
        metadata = {"name": name, "namespace": self.namespace}
        kind = INFERENCE_DEPLOYMENTS
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
        await self.kube.create(kind, body)

    async def delete(self, name: str) -> None:
        """Delete a deployment."""
        await self.kube.delete(INFERENCE_DEPLOYMENTS, self.namespace, name)

    # what there is

    def deployment(self, name: str) -> Resource:
        """Return a deployment as last seen, {} if there is none."""
        return self._deployments.get(self.namespace, name) or {}

    def status(self, name: str) -> Mapping[str, Any]:
        """Return its status, {} before the first write."""
        return self.deployment(name).get("status") or {}

    def condition(self, name: str, kind: str) -> Mapping[str, Any]:
        """Return one condition, {} if it is not there or speaks of an older spec."""
        generation = self.deployment(name).get("metadata", {}).get("generation")
        found = next((c for c in self.status(name).get("conditions", ()) if c["type"] == kind), {})
        return found if self.status(name).get("observedGeneration") == generation else {}

    def is_ready(self, *names: str) -> bool:
        """Return whether all of them serve with the present spec."""
        return all(self.condition(name, "Ready").get("status") == "True" for name in names)

    def pods(self, name: str) -> list[Resource]:
        """Return its pods as last seen, ordered by name."""
        label = "inference.dormouse.dev/deployment"
        found = [pod for pod in self._pods.objects.values() if pod["metadata"]["labels"].get(label) == name]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def ready_pods(self, name: str) -> list[str]:
        """Return the names of its pods that a Service would send requests to."""
        return [pod["metadata"]["name"] for pod in self.pods(name) if _is_ready(pod)]

    async def epoch(self) -> int:
        """Return the lease's epoch, 0 without a lease."""
        lease = await self.kube.get(LEASES, self.namespace, "dormouse-operator")
        return int(lease["spec"]["leaseTransitions"]) if lease else 0

    async def holder(self) -> str:
        """Return the user whose operator holds the lease, "" for nobody."""
        lease = await self.kube.get(LEASES, self.namespace, "dormouse-operator")
        return str(lease["spec"].get("holderIdentity") or "").partition("/")[0] if lease else ""

    def writes(self, *, since: int = 0, user: str = "operator") -> list[str]:
        """Return operators' answered writes in this namespace but the lease's, as USER VERB RESOURCE NAME CODE."""
        told = []
        for entry in list(self.plane.audit())[since:]:
            what, who = entry.get("objectRef") or {}, entry["user"]["username"]
            if what.get("namespace") == self.namespace and who.startswith(user) and what["resource"] != "leases":
                path = "/".join(part for part in (what["resource"], what.get("subresource")) if part)
                told.append(f"{who} {entry['verb']} {path} {what.get('name')} {entry['responseStatus']['code']}")
        return told

    async def shape(self, name: str) -> Mapping[str, Any]:
        """Return the final state without what may differ between two runs: times, UIDs, versions, addresses."""
        service = await self.kube.get(SERVICES, self.namespace, name)
        status = _timeless(self.status(name))
        status.pop("lastActuation", None)
        told = [{key: c[key] for key in ("type", "status", "reason", "message")} for c in status.pop("conditions", ())]
        pods = [
            (p["metadata"]["name"], p["metadata"]["labels"], p["spec"]["containers"], _is_ready(p))
            for p in self.pods(name)
        ]
        workers = sorted(
            (n, str(w.state), w.allocated) for n, w in self.kubelet.workers.items() if n.startswith(f"{name}-")
        )
        ports = service and (service["spec"]["ports"], service["spec"]["selector"])
        return {"status": status, "conditions": told, "pods": pods, "service": ports, "workers": workers}

    # waiting

    def touch(self) -> None:
        """Have a waiting test look again."""
        self._changed.set()

    async def until(self, check: Callable[[], _T], *, timeout_s: float = PATIENCE_S) -> _T:
        """Wait until a look at the copies shows something true; looks after every change. Returns what it shows."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := check()):
                    self._changed.clear()
                    await self._changed.wait()
                return found
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s:.0f} s: {self._story()}") from None

    async def eventually(self, look: Callable[[], Awaitable[_T]], *, timeout_s: float = PATIENCE_S) -> _T:
        """Wait until a look at something that tells of no changes (a metric, the lease) shows something true."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := await look()):  # noqa: ASYNC110  # what is looked at tells nobody of changes
                    await asyncio.sleep(_LOOK_S)
                return found
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s:.0f} s: {self._story()}") from None

    async def serves(self, name: str, *, replicas: int = 1, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a deployment serves, and assert the one final state that every fault has to end in."""
        await self.until(lambda: self._is_served(name, replicas), timeout_s=timeout_s)
        await self.eventually(lambda: self.kube.get(SERVICES, self.namespace, name))
        agreed = self.status(name)["kvCache"]["numGpuBlocks"]
        held = [self.kubelet.worker(pod["metadata"]["name"]).allocated for pod in self.pods(name)]
        assert held == [agreed] * replicas, "every worker holds what was agreed"
        starts = {pod["metadata"]["name"]: self.kubelet.starts[pod["metadata"]["name"]] for pod in self.pods(name)}
        assert max(starts.values()) <= 1, f"no child was made twice: {starts}"

    async def rests(self, operator: OperatorProcess) -> None:
        """Wait until an operator writes nothing but its lease between two renewals of that."""

        async def renewals() -> float:
            return await operator.metric("dormouse_kube_requests_total", verb="update", resource="leases", code="200")

        before = None
        while before != (before := self.writes()):
            count = await renewals()

            async def is_renewed(count: float = count) -> bool:
                return await renewals() > count

            await self.eventually(is_renewed)

    def _is_served(self, name: str, replicas: int) -> bool:
        counts = {len(self.pods(name)), len(self.ready_pods(name)), self.status(name).get("readyReplicas")}
        return self.is_ready(name) and counts == {replicas}

    def _note(self, _: ObjectKey, __: Resource | None) -> None:
        self.touch()

    def _story(self) -> str:
        """Return what a reader of a failure wants to see."""
        told = [f"{key.name}: {obj.get('status')}" for key, obj in list(self._deployments.objects.items())[:5]]
        logs = [f"{process!r}\n{process.program.tail()}" for process in self._operators]
        return "\n".join([*told, repr(self.kubelet), *logs])


def definitions() -> str:
    """Return all of our custom resources, as the chart installs them."""
    return "\n---\n".join(path.read_text("utf-8") for path in sorted((ROOT / "crds").glob("*.yaml")))


async def install(kube: KubeClient, manifests: str, users: tuple[str, ...] = ()) -> None:
    """Apply manifests; where `users` are named, bindings are made out to them instead of service accounts."""
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user} for user in users]
    for manifest in filter(None, yaml.safe_load_all(manifests)):
        if users and "subjects" in manifest:
            manifest["subjects"] = subjects
        name = str(manifest["kind"])
        plural = f"{name.lower().removesuffix('y')}{'ies' if name.endswith('y') else 's'}"
        kind = Kind(manifest["apiVersion"], name, plural, namespaced="namespace" in manifest["metadata"])
        await kube.apply(kind, manifest, field_manager="tests")


def _timeless(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without what says when something was."""
    times = {"startTime", "since", "idleSince"}
    return {
        key: _timeless(inner) if isinstance(inner, Mapping) else inner
        for key, inner in value.items()
        if key not in times
    }


def _is_ready(pod: Resource) -> bool:
    is_deleting = "deletionTimestamp" in pod["metadata"]
    conditions = pod.get("status", {}).get("conditions", ())
    return not is_deleting and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _write_tokens(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("operator-seed", OPERATOR_SEED), ("gateway-seed", GATEWAY_SEED)):
        (folder / name).write_text(text, "utf-8")
