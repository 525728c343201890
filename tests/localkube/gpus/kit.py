"""An API server and a kubelet as a driver of devices meets them, in memory and at real sockets."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import grpc

from localkube import spec
from localkube.errors import ApiError
from localkube.gpus import plugin_pb2 as pb
from localkube.gpus import plugin_pb2_grpc, registration_pb2, registration_pb2_grpc
from localkube.gpus.objects import CLAIMS_PATH, DRIVER

NODE_PATH = f"/api/v1/nodes/{spec.NODE_NAME}"
TIMEOUT_S = 90.0


def a_claim(name: str = "a", *devices: str, driver: str = DRIVER, **metadata: Any) -> dict[str, Any]:
    """Return a claim of the namespace `ns` with these devices allocated; without any it waits."""
    claim: dict[str, Any] = {"metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}", **metadata}}
    results = [{"request": "gpu", "driver": driver, "pool": spec.NODE_NAME, "device": device} for device in devices]
    if results:
        claim["status"] = {"allocation": {"devices": {"results": results}}}
    return claim


class FakeApi:
    """Objects by path; a claim is found by its own path and in the list of all."""

    def __init__(self, *claims: dict[str, Any]) -> None:
        self.objects: dict[str, Any] = {NODE_PATH: {"metadata": {"uid": "node-1"}}}
        self.log: list[str] = []
        self.changed = threading.Event()
        self.failures: list[ApiError] = []  # raised once each by the next writes
        for claim in claims:
            self.objects[claim_path(claim)] = claim

    def get(self, path: str) -> Any:
        if path == CLAIMS_PATH:
            return {"items": [value for key, value in self.objects.items() if "/resourceclaims/" in key]}
        if path not in self.objects:
            raise ApiError(f"GET {path}: 404", status=404)
        return self.objects[path]

    def apply(self, path: str, value: dict[str, Any]) -> None:
        self._write("apply", path)
        self.objects[path] = value
        self.changed.set()

    def delete(self, path: str) -> None:
        self._write("delete", path)
        if path not in self.objects:
            raise ApiError(f"DELETE {path}: 404", status=404)
        del self.objects[path]

    def _write(self, verb: str, path: str) -> None:
        self.log.append(f"{verb} {path.rpartition('/')[2]}")
        if self.failures:
            raise self.failures.pop(0)


def claim_path(claim: dict[str, Any]) -> str:
    """Return where a claim is found."""
    metadata = claim["metadata"]
    return CLAIMS_PATH.replace("/resourceclaims", f"/namespaces/{metadata['namespace']}/resourceclaims/") + str(
        metadata["name"]
    )


class FakeKubelet:
    """Does as the kubelet does with what it finds in its folder of plugins."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stand_ins = root / "stand-ins"
        self.registry = root / "plugins_registry" / f"{DRIVER}.sock"
        self.endpoint = ""

    def register(self, *, error: str = "") -> registration_pb2.PluginInfo:
        """Ask who is there and say whether it is taken."""
        with grpc.insecure_channel(f"unix:{self.registry}") as channel:
            stub = registration_pb2_grpc.RegistrationStub(channel)
            info = stub.GetInfo(registration_pb2.InfoRequest(), timeout=TIMEOUT_S, wait_for_ready=True)
            told = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
            stub.NotifyRegistrationStatus(told, timeout=TIMEOUT_S)
        self.endpoint = info.endpoint
        return info

    def prepare(self, *claims: pb.Claim) -> dict[str, pb.NodePrepareResourceResponse]:
        """Have claims prepared; the answers by UID."""
        with grpc.insecure_channel(f"unix:{self.endpoint}") as channel:
            stub = plugin_pb2_grpc.DRAPluginStub(channel)
            request = pb.NodePrepareResourcesRequest(claims=claims)
            return dict(stub.NodePrepareResources(request, timeout=TIMEOUT_S).claims)

    def unprepare(self, *claims: pb.Claim) -> dict[str, pb.NodeUnprepareResourceResponse]:
        """Have claims given back; the answers by UID."""
        with grpc.insecure_channel(f"unix:{self.endpoint}") as channel:
            stub = plugin_pb2_grpc.DRAPluginStub(channel)
            request = pb.NodeUnprepareResourcesRequest(claims=claims)
            return dict(stub.NodeUnprepareResources(request, timeout=TIMEOUT_S).claims)


def asked(name: str, uid: str = "") -> pb.Claim:
    """Return a claim as the kubelet names it."""
    return pb.Claim(namespace="ns", name=name, uid=uid or f"uid-{name}")
