"""What the kubelet asks of the driver, answered from claims at the API server. Keeps nothing that a restart loses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import grpc

from localkube.errors import ApiError, ComponentError
from localkube.gpus import plugin_pb2 as pb
from localkube.gpus import plugin_pb2_grpc, registration_pb2, registration_pb2_grpc
from localkube.gpus.objects import CLAIMS_PATH, DRIVER, Allocated, Gpus, allocated

POLL_S = 0.2
CLAIM_PATH = CLAIMS_PATH.replace("/resourceclaims", "/namespaces/{namespace}/resourceclaims/{name}")


class ClaimApi(Protocol):
    """What is asked of the API server."""

    def get(self, path: str) -> Any:
        """Return an object; raises ApiError."""


class Plugin(plugin_pb2_grpc.DRAPluginServicer):
    """Implements DRAPlugin. Nothing is done to a device that is not there: to prepare is to name it.

    The kubelet keeps for itself which claims are prepared, and asks once for all pods that share one.
    """

    def __init__(self, api: ClaimApi, gpus: Gpus) -> None:
        self._api = api
        self._gpus = gpus

    def __repr__(self) -> str:
        return f"Plugin({self._gpus})"

    def NodePrepareResources(  # noqa: N802  # the contract's name
        self, request: pb.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodePrepareResourcesResponse:
        """Return the devices of each claim, or why it has none. A claim that failed is asked for again."""
        del context
        return pb.NodePrepareResourcesResponse(claims={claim.uid: self._prepare(claim) for claim in request.claims})

    def NodeUnprepareResources(  # noqa: N802  # the contract's name
        self, request: pb.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodeUnprepareResourcesResponse:
        """Give back; safe for claims that nobody prepared or that are gone."""
        del context
        return pb.NodeUnprepareResourcesResponse(
            claims={claim.uid: pb.NodeUnprepareResourceResponse() for claim in request.claims}
        )

    def _prepare(self, asked: pb.Claim) -> pb.NodePrepareResourceResponse:
        try:
            claim = self._api.get(CLAIM_PATH.format(namespace=asked.namespace, name=asked.name))
        except ApiError as error:
            return pb.NodePrepareResourceResponse(error=str(error))
        devices = allocated(claim)
        if complaint := self._complaint(asked, claim["metadata"]["uid"], devices):
            return pb.NodePrepareResourceResponse(error=complaint)
        return pb.NodePrepareResourceResponse(devices=map(_prepared, devices))

    def _complaint(self, asked: pb.Claim, uid: str, devices: Iterable[Allocated]) -> str:
        """Return why this claim cannot be prepared, "" if it can."""
        if uid != asked.uid:
            return f"the claim {asked.namespace}/{asked.name} is another one now: its UID is {uid}, not {asked.uid}"
        known = {(self._gpus.node, name) for name in self._gpus.names}
        unknown = [f"{each.pool}/{each.device}" for each in devices if (each.pool, each.device) not in known]
        if unknown:
            return f"{DRIVER} has no {', '.join(unknown)} any more"
        return "" if devices else f"nothing of {DRIVER} is allocated for the claim {asked.namespace}/{asked.name}"


def _prepared(allocated_device: Allocated) -> pb.Device:
    """Return a device without CDI names: nothing is to be mounted, and containerd before 1.7 knows none."""
    return pb.Device(
        request_names=[allocated_device.request],
        pool_name=allocated_device.pool,
        device_name=allocated_device.device,
    )


class Registration(registration_pb2_grpc.RegistrationServicer):
    """Implements Registration: tells the kubelet which socket to ask, and keeps what it answers."""

    def __init__(
        self, endpoint: Path, kind: str = "DRAPlugin", name: str = DRIVER, version: str = "v1.DRAPlugin"
    ) -> None:
        self._endpoint = endpoint
        self._info = registration_pb2.PluginInfo(
            type=kind, name=name, endpoint=str(endpoint), supported_versions=[version]
        )
        self._answered = threading.Event()
        self._error = ""

    def __repr__(self) -> str:
        return f"Registration({self._endpoint}, answered={self._answered.is_set()}, error={self._error!r})"

    def GetInfo(  # noqa: N802  # the contract's name
        self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_pb2.PluginInfo:
        """Say who we are."""
        del request, context
        return self._info

    def NotifyRegistrationStatus(  # noqa: N802  # the contract's name
        self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_pb2.RegistrationStatusResponse:
        """Hear whether the kubelet takes us; a kubelet that starts again asks again."""
        del context
        self._error = "" if request.plugin_registered else request.error or "no reason given"
        self._answered.set()
        return registration_pb2.RegistrationStatusResponse()

    def wait(self, timeout_s: float, is_asked_to_end: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the kubelet has taken us; return False if we are asked to end before.

        Raises ComponentError with the kubelet's words, or that it said nothing.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._answered.wait(POLL_S):
            if is_asked_to_end():
                return False
            if time.monotonic() >= deadline_s:
                raise ComponentError(
                    f"the kubelet did not register {self._info.name} within {timeout_s:.0f} s; does it run?"
                )
        if self._error:
            raise ComponentError(f"the kubelet refused {self._info.name}: {self._error}")
        return True
