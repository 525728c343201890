"""The same stand-ins as an extended resource: a device plugin of the older kind, which gives each GPU to one container.

A container is told its GPUs by a variable, as by NVIDIA's plugin, and by nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from localkube.gpus import device_plugin_pb2 as pb
from localkube.gpus import device_plugin_pb2_grpc, folders, registration_pb2_grpc
from localkube.gpus.driver import POLL_S, Registration
from localkube.gpus.objects import Gpus
from localkube.gpus.offer import REGISTERED_WITHIN_S, Stop, folder, listening

RESOURCE = "localkube.dormouse.dev/gpu"
VARIABLE = "STAND_IN_VISIBLE_DEVICES"
KIND, VERSION = "DevicePlugin", "v1beta1"
HEALTHY = "Healthy"


class DevicePlugin(device_plugin_pb2_grpc.DevicePluginServicer):
    """Implements DevicePlugin. The kubelet keeps for itself which container has which device."""

    def __init__(self, gpus: Gpus, ended: threading.Event) -> None:
        self._gpus = gpus
        self._ended = ended

    def __repr__(self) -> str:
        return f"DevicePlugin({self._gpus})"

    def GetDevicePluginOptions(  # noqa: N802  # the contract's name
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.DevicePluginOptions:
        """Want nothing beside."""
        del request, context
        return pb.DevicePluginOptions()

    def ListAndWatch(  # noqa: N802  # the contract's name
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        """Tell of all devices once; end with the plugin, or when the kubelet has gone."""
        del request
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID=name, health=HEALTHY) for name in self._gpus.names])
        while context.is_active() and not self._ended.wait(POLL_S):
            pass

    def Allocate(  # noqa: N802  # the contract's name
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        """Name to each container what it gets."""
        del context
        told = ({VARIABLE: ",".join(sorted(asked.devices_ids))} for asked in request.container_requests)
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs=envs) for envs in told])


@dataclass(frozen=True, slots=True)
class PluginOffer:
    """The GPUs of one node as an extended resource, for as long as `run` runs. See `Offer`."""

    kubelet: Path
    stand_ins: Path
    gpus: Gpus
    log: Callable[[str], None]

    def run(self, stop: Stop) -> None:
        """Offer the GPUs until asked to stop. Raises ComponentError if the kubelet did not take the plugin."""
        endpoint, ended = self.kubelet / "plugins" / RESOURCE.replace("/", ".") / "plugin.sock", threading.Event()
        registration = Registration(endpoint, KIND, RESOURCE, VERSION)
        plugin = partial(device_plugin_pb2_grpc.add_DevicePluginServicer_to_server, DevicePlugin(self.gpus, ended))
        registrar = partial(registration_pb2_grpc.add_RegistrationServicer_to_server, registration)
        with (
            folder(endpoint.parent),
            listening(endpoint, plugin),
            listening(self.kubelet / "plugins_registry" / f"{RESOURCE.replace('/', '.')}.sock", registrar),
        ):
            if registration.wait(REGISTERED_WITHIN_S, stop.asked.is_set):
                folders.make(self.stand_ins, self.gpus)
                offered = f"{RESOURCE} offers {', '.join(self.gpus.names)} of {self.gpus.memory}"
                self.log(f"{offered}, to pods that mount {self.stand_ins}; end it with Ctrl-C")
                stop.asked.wait()
            ended.set()
        folders.remove(self.stand_ins)
