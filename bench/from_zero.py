"""From no pod at all to the first token: a real worker as a pod of the local Kubernetes, its image and model there.

A release of its own is installed; a model goes to Zero after two seconds without a call, a request through the gateway
brings it back. What happened when is told by a watch of its pod: created, bound to a node, started by the kubelet,
ready. Then the same with a spare pod that has had five seconds to rest: only an engine has to start in it. As root, on
the cluster that `make cluster` made.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import grpc
from rich.console import Console

from bench.options import Options, main
from bench.results import AtMost, Row
from bench.watching import watched
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from tools.bootstrap import ROOT
from tools.kubectl import Cluster
from tools.release import Release, fill_model_claim, install
from tools.train_model import Recipe, model_dir

NAME = "moth"
TIMEOUT_S = 120
POLL_S = 0.5
REST_S = 5.0  # after which a spare pod has imported all that its engine needs
SHOWN = (
    "{.metadata.name},{.spec.nodeName},{.status.containerStatuses[0].state.running.startedAt},"
    '{.status.conditions[?(@.type=="Ready")].status}{"\\n"}'
)
STEPS = ("until there is a pod", "until it has a node", "until its container runs", "until it is ready", "first token")
RESOURCE: dict[str, Any] = {
    "apiVersion": "inference.dormouse.dev/v1alpha1",
    "kind": "InferenceDeployment",
    "metadata": {"name": NAME},
    "spec": {
        "model": {"uri": "pvc://models/tiny"},
        "replicas": 1,
        "engine": {"device": "cpu", "maxModelLen": 512, "kvCacheMemory": "64Mi"},
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1536Mi"}},
        "lifecycle": {
            "level1AfterSeconds": 1,
            "level2AfterSeconds": None,
            "zeroAfterSeconds": 2,
            "minActiveSeconds": 0,
        },
    },
}
_SPEC = RESOURCE["spec"]
WITH_A_SPARE = {**RESOURCE, "spec": {**_SPEC, "lifecycle": {**_SPEC["lifecycle"], "spares": 1}}}


@dataclass(slots=True)
class Seen:
    """When each thing was first seen of each pod."""

    pods: dict[str, list[float]] = field(default_factory=dict)

    def note(self, line: str) -> None:
        """Take a line of the watch."""
        name, node, started, ready = line.split(",")
        times_s = self.pods.setdefault(name, [time.monotonic()])
        for number, there in enumerate((node, started, ready == "True"), start=1):
            if there and len(times_s) == number:
                times_s.append(time.monotonic())


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    with _model_of_its_own() as (cluster, namespace, gateway):
        starts = [_start(cluster, namespace, gateway, console) for _ in range(options.reps + 1)][1:]
        cluster.apply(WITH_A_SPARE, namespace)
        with_a_spare = [_start_spare(cluster, namespace, gateway, console) for _ in range(options.reps + 1)][1:]
    whole, parts = [sum(start) for start in starts], zip(STEPS, zip(*starts, strict=True), strict=True)
    return [
        Row("from Zero on localkube: request to first token, tiny, p50", median(whole), "s", goal=AtMost(4.0)),
        *(Row(f"from Zero on localkube: of it, {step}", median(seconds), "s") for step, seconds in parts),
        Row("from Zero on localkube: the same with a spare pod, p50", median(with_a_spare), "s", goal=AtMost(1.0)),
    ]


@contextmanager
def _model_of_its_own() -> Iterator[tuple[Cluster, str, rpc.InferenceStub]]:
    """Install a release, apply the model and open the gateway; all is removed afterwards."""
    cluster, run_id = Cluster.current(), secrets.token_hex(3)
    namespace = f"zero-{run_id}"
    release = Release(name=namespace, namespace=f"{namespace}-system", watch_namespaces=(namespace,))
    try:
        install(cluster, release)
        claim = ROOT / "examples" / "demo" / "models-claim.yaml"
        fill_model_claim(cluster, namespace=namespace, claim_manifest=claim, model=model_dir(Recipe()))
        cluster.apply(RESOURCE, namespace)
        with (
            cluster.port_forward(release.gateway, 50051, release.namespace) as port,
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yield cluster, namespace, rpc.InferenceStub(channel)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--ignore-not-found")
        cluster.helm("uninstall", release.name, "--namespace", release.namespace, "--wait")
        cluster.kubectl("delete", "namespace", release.namespace, "--wait=false")


def _start(cluster: Cluster, namespace: str, gateway: rpc.InferenceStub, console: Console) -> list[float]:
    """Wait until there is no pod, ask, and return the seconds of each step."""
    _wait_for_zero(cluster, namespace)
    seen = Seen()
    with watched(cluster, "pods", "-n", namespace, shown=SHOWN, note=seen.note):
        begun_s = time.monotonic()
        _first_token(gateway)
        token_s = time.monotonic()
    [pod] = [times_s for name, times_s in seen.pods.items() if name.startswith(NAME)]
    seen_s = [begun_s, *(min(time_s, token_s) for time_s in pod), *[token_s] * (5 - len(pod))]
    steps = [after_s - before_s for before_s, after_s in pairwise(seen_s)]
    console.print(f"  {' '.join(f'{step:.3f}' for step in steps)} = {sum(steps):.2f} s", highlight=False)
    return steps


def _start_spare(cluster: Cluster, namespace: str, gateway: rpc.InferenceStub, console: Console) -> float:
    """Wait until a spare pod alone is there and rests, ask, and return the seconds."""
    _wait_for_zero(cluster, namespace, spares=1)
    time.sleep(REST_S)
    begun_s = time.monotonic()
    _first_token(gateway)
    took_s = time.monotonic() - begun_s
    console.print(f"  with a spare pod: {took_s:.2f} s", highlight=False)
    return took_s


def _wait_for_zero(cluster: Cluster, namespace: str, spares: int = 0) -> None:
    """Wait until no pod is left but so many spare ones, and these are ready to be one."""
    selector = f"inference.dormouse.dev/deployment={NAME}"
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (
        (status := _status(cluster, namespace)).get("phase") == "Zero"
        and status.get("spareReplicas", 0) == len(cluster.list("pods", namespace, selector)) == spares
    ):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{NAME} did not go to Zero: {json.dumps(_status(cluster, namespace))}")
        time.sleep(POLL_S)


def _status(cluster: Cluster, namespace: str) -> dict[str, Any]:
    status: dict[str, Any] = cluster.get("infd", NAME, namespace).get("status", {})
    return status


def _first_token(gateway: rpc.InferenceStub) -> None:
    params = pb.SamplingParams(temperature=0, max_tokens=1)
    request = pb.GenerateRequest(model=NAME, token_ids=pb.TokenIds(ids=[5, 6, 7]), sampling_params=params)
    for response in gateway.Generate(request, timeout=TIMEOUT_S, wait_for_ready=True):
        if response.token_ids:
            return
    raise RuntimeError("no token came")


if __name__ == "__main__":
    main("from_zero", __doc__, measure)
