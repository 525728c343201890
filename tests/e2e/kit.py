"""What the end-to-end tests say about deployments and models, in the words of a user."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from dormouse_api.names import GROUP
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from tools.kubectl import Cluster, CommandFailed, run
from tools.release import tool_command, tool_env

POLL_S = 0.25
STATUS_OF_ALL_PROCESSES = "import glob; print(*(open(file).read() for file in glob.glob('/proc/[0-9]*/status')))"
Manifest = dict[str, Any]


def lasting_kinds(cluster: Cluster) -> str:
    """Return the kinds with a namespace that can be listed, as kubectl takes them, but for Events.

    Groups below dormouse.dev other than ours are those of tests that run beside this one and define them for a moment:
    they may be gone when they are asked.
    """
    said = cluster.kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
    kinds = [kind for kind in said if kind.partition(".")[0] != "events"]
    return ",".join(kind for kind in kinds if kind.endswith(f".{GROUP}") or not kind.endswith(".dormouse.dev"))


def dormouse(cluster: Cluster, *arguments: str) -> str:
    """Run the command line as a user would; return what it printed."""
    return run(tool_command("dormouse_cli", *arguments), env={**tool_env(), **cluster.env}).strip()


class Deployments:
    """The InferenceDeployments of one namespace: made from what a test states, removed when it ends."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.made: list[str] = []

    def manifest(self, name: str, **spec: Any) -> Manifest:
        """Return a valid resource; `engine` settings are merged over the defaults, other fields replace them."""
        engine = {
            "device": "cpu",
            "dtype": "float32",
            "maxModelLen": 512,
            "maxNumSeqs": 8,
            "maxNumBatchedTokens": 256,
            **spec.pop("engine", {}),
        }
        resources = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1536Mi"}}
        body = {"model": {"uri": "pvc://models/tiny"}, "replicas": 1, "engine": engine, "resources": resources, **spec}
        return {
            "apiVersion": "inference.dormouse.dev/v1alpha1",
            "kind": "InferenceDeployment",
            "metadata": {"name": name},
            "spec": body,
        }

    def apply(self, name: str, **spec: Any) -> str:
        """Apply a resource and remember to delete it."""
        self.cluster.apply(self.manifest(name, **spec), self.namespace)
        self.made.append(name)
        return name

    def patch(self, name: str, spec: Manifest) -> None:
        """Merge-patch the spec."""
        patch = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "infd", name, "-n", self.namespace, "--type=merge", "-p", patch)

    def wait(self, name: str, condition: str, timeout_s: int = 120) -> None:
        """Wait for a condition as a user would: `kubectl wait --for=…`."""
        try:
            self.cluster.wait(f"infd/{name}", condition, self.namespace, timeout_s)
        except CommandFailed as error:
            raise AssertionError(f"{error}\nstatus: {self.status(name)}") from error

    def sleep(self, name: str, level: int) -> None:
        """Order a sleep, and wait for it."""
        self.patch(name, {"lifecycle": {"desiredState": "Asleep", "sleepLevel": level}})
        self.wait(name, "condition=Asleep")

    def wake(self, name: str) -> None:
        """Order the wake, and wait until it serves."""
        self.patch(name, {"lifecycle": {"desiredState": "Active"}})
        self.wait(name, "condition=Ready", timeout_s=180)

    def status(self, name: str) -> Manifest:
        """Return the status, {} before the first write."""
        status: Manifest = self.cluster.get("infd", name, self.namespace).get("status", {})
        return status

    def condition(self, name: str, kind: str) -> Manifest:
        """Return one condition, {} if it is not there."""
        conditions = self.status(name).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def pods(self, name: str) -> list[Manifest]:
        """Return the worker pods of a deployment, ordered by name."""
        selector = f"inference.dormouse.dev/deployment={name}"
        return sorted(self.cluster.list("pods", self.namespace, selector), key=lambda p: p["metadata"]["name"])

    def logs(self, pod: str) -> str:
        """Return what a pod wrote."""
        return self.cluster.kubectl("logs", "-n", self.namespace, pod)

    def events(self, name: str) -> list[str]:
        """Return the messages of the Events about a deployment."""
        events = self.cluster.list("events", self.namespace)
        return [e["message"] for e in events if e["involvedObject"].get("name") == name]

    def restarts(self, name: str) -> list[int]:
        """Return how often each worker's container was started again; a pod that never started one counts as 0."""
        pods = self.pods(name)
        return [sum(c["restartCount"] for c in pod["status"].get("containerStatuses", ())) for pod in pods]

    def resident_bytes(self, name: str) -> int:
        """Return the memory that the processes of a deployment's only worker pod have resident."""
        [pod] = [pod["metadata"]["name"] for pod in self.pods(name)]
        read = ["--", "python", "-c", STATUS_OF_ALL_PROCESSES]
        said = self.cluster.kubectl("exec", "-n", self.namespace, pod, *read)
        return sum(int(kib) << 10 for kib in re.findall(r"VmRSS:\s+(\d+) kB", said))

    def everything(self) -> set[str]:
        """Return kind and name of every object in the namespace, of any lasting kind."""
        return set(self.cluster.kubectl("get", lasting_kinds(self.cluster), "-n", self.namespace, "-o", "name").split())

    def delete(self, name: str) -> None:
        """Ask for the end of a resource, and do not wait for it."""
        self.cluster.kubectl("delete", "infd", name, "-n", self.namespace, "--ignore-not-found", "--wait=false")
        if name in self.made:
            self.made.remove(name)


class Model:
    """Calls one model through the gateway."""

    def __init__(self, stub: rpc.InferenceStub, name: str) -> None:
        self.stub = stub
        self.name = name

    def generate(self, request: pb.GenerateRequest, timeout_s: float = 150) -> list[pb.GenerateResponse]:
        """Return all messages of a stream."""
        request.model = request.model or self.name
        return list(self.stub.Generate(request, timeout=timeout_s))

    def greedy(self, prompt_token_ids: list[int], max_tokens: int, timeout_s: float = 150) -> list[int]:
        """Return the greedy tokens of a prompt."""
        sampling = pb.SamplingParams(temperature=0, max_tokens=max_tokens)
        prompt = pb.TokenIds(ids=prompt_token_ids)
        responses = self.generate(pb.GenerateRequest(token_ids=prompt, sampling_params=sampling), timeout_s)
        return [token for response in responses for token in response.token_ids]

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(self.stub.Tokenize(pb.TokenizeRequest(model=self.name, text=text), timeout=90).token_ids)


def wait_until(check: Callable[[], Any], *, timeout_s: float = 240) -> Any:
    """Wait until a check returns something true and return that; fail with its last answer at the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s} s; last answer: {found!r}"
        time.sleep(POLL_S)


def wait_until_none(remaining: Callable[[], Any], *, timeout_s: float = 240) -> None:
    """Wait until a check returns nothing more; fail with what remains at the deadline."""
    deadline = time.monotonic() + timeout_s
    while left := remaining():
        assert time.monotonic() < deadline, f"still there after {timeout_s} s: {left}"
        time.sleep(POLL_S)


def stays(look: Callable[[], Any], wanted: Any, *, for_s: float = 5) -> None:
    """Assert that a look shows the same all the time."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        seen = look()
        assert seen == wanted, f"{seen}, not {wanted}"
        time.sleep(POLL_S)


class Models:
    """Models by name, through the gateway."""

    def __init__(self, stub: rpc.InferenceStub) -> None:
        self.stub = stub

    def __call__(self, name: str) -> Model:
        return Model(self.stub, name)

    def answers(self, name: str, prompt_token_ids: list[int], max_tokens: int) -> list[int]:
        """Return the greedy tokens, [] while the gateway knows no ready worker."""
        try:
            return Model(self.stub, name).greedy(prompt_token_ids, max_tokens)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND):
                return []
            raise

    def refusal(self, name: str) -> str:
        """Return code and words with which a request is refused."""
        with pytest.raises(grpc.RpcError) as caught:
            Model(self.stub, name).greedy([5], 1)
        return f"{caught.value.code().name}: {caught.value.details()}"
