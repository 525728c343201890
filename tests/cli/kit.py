"""What a cluster holds, with defaults that are those of a deployment that serves."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_cli.cluster import NAMESPACES
from dormouse_cli.testing import FakeCluster
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS

TIME = "2026-11-21T21:38:12Z"
STEPS = {
    "Accepted": ("Accepted", "the spec can be served"),
    "Scheduled": ("Scheduled", "1 of 1 pods have a node"),
    "ModelLoaded": ("Loaded", "1 of 1 workers have loaded the model"),
    "MemoryProfiled": ("Profiled", "reported blocks: [2730], limited by kvCacheMemory"),
    "BlocksAgreed": ("Agreed", "blocks agreed: 2730"),
    "CacheAllocated": ("Allocated", "1 of 1 workers hold 2730 blocks"),
    "Progressing": ("Complete", "all pods are of revision fa477b28"),
    "Ready": ("Serving", "1 of 1 replicas serve"),
    "Available": ("Serving", "1 of 1 replicas serve"),
}


@contextmanager
def serving(servicer: Any, *, num_threads: int = 2) -> Iterator[int]:
    """Serve Inference on loopback and give the port."""
    grpc_server = grpc.server(futures.ThreadPoolExecutor(num_threads))
    rpc.add_InferenceServicer_to_server(servicer, grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    yield port
    grpc_server.stop(None).wait()


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    """Return a condition."""
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": TIME}


def serving_conditions() -> list[dict[str, Any]]:
    """Return the conditions of a deployment that serves."""
    done = [condition(type_, "True", *words) for type_, words in STEPS.items()]
    awake = condition("Asleep", "False", "Awake", "no order to sleep")
    return [*done, awake, condition("Degraded", "False", "AsExpected", "nothing needs attention")]


def lacking(raw: dict[str, Any], step: str, reason: str, message: str) -> dict[str, Any]:
    """Make the step, and with it Ready, not done."""
    for type_ in (step, "Ready"):
        place = next(n for n, one in enumerate(raw["status"]["conditions"]) if one["type"] == type_)
        raw["status"]["conditions"][place] = condition(type_, "False", reason, message)
    return raw


def deployment(name: str = "tiny", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """Return an InferenceDeployment that serves, with these fields of the spec."""
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"uri": "pvc://models/tiny"},
            "engine": {"device": "cpu"},
            "replicas": 1,
            "lifecycle": {"desiredState": "Auto", "sleepLevel": 1},
            **spec,
        },
        "status": {
            "observedGeneration": 1,
            "phase": "Active",
            "readyReplicas": 1,
            "sleepingReplicas": 0,
            "url": "dormouse-gateway.dormouse.svc:50051",
            "conditions": serving_conditions(),
            "kvCache": {
                "blockSize": 16,
                "numGpuBlocks": 2730,
                "ranks": [rank(f"{name}-fa477b28-0")],
            },
            "lastActuation": {"path": "cold", "seconds": 12.5, "reason": "started", "time": TIME},
        },
    }


def rank(pod: str, number: int = 0, **more: Any) -> dict[str, Any]:
    """Return a rank's report."""
    known = {"allocatedGpuBlocks": 2730, "numGpuBlocks": 2800, "limitedBy": "kvCacheMemory"}
    return {"rank": number, "pod": pod, **known, **more}


def pod(deployment: str = "tiny", replica: int = 0, namespace: str = "default", **status: Any) -> dict[str, Any]:
    """Return a worker pod that serves, with these fields of the status."""
    labels = {
        "app.kubernetes.io/part-of": "dormouse",
        "app.kubernetes.io/component": "worker",
        "inference.dormouse.dev/deployment": deployment,
        "inference.dormouse.dev/replica": str(replica),
    }
    ready = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": f"{deployment}-fa477b28-{replica}", "namespace": namespace, "labels": labels},
        "spec": {
            "nodeName": "node-a",
            "containers": [{"name": "worker", "resources": {"limits": {"memory": "1536Mi"}}}],
        },
        "status": {"phase": "Running", "conditions": ready, "containerStatuses": [], **status},
    }


def cluster(
    *deployments: dict[str, Any], pods: tuple[dict[str, Any], ...] = (), kind: type[FakeCluster] = FakeCluster
) -> FakeCluster:
    """Return a cluster with the namespaces default and team, and these objects."""
    fake = kind()
    for name in ("default", "team", "dormouse"):
        fake.put(NAMESPACES, {"metadata": {"name": name}})
    for one in deployments:
        fake.put(INFERENCE_DEPLOYMENTS, one)
    for one in pods:
        fake.put(PODS, one)
    return fake
