"""The stand-ins as an extended resource, over real sockets: each container is told its own by a variable."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from localkube.errors import ComponentError
from localkube.gpus import device_plugin_pb2 as pb
from localkube.gpus import device_plugin_pb2_grpc
from localkube.gpus.device_plugin import KIND, RESOURCE, VARIABLE, VERSION, PluginOffer
from localkube.gpus.objects import Gpus
from localkube.gpus.offer import Stop
from tests.localkube.gpus.kit import TIMEOUT_S, FakeKubelet

GPUS = Gpus(2, "512Mi")


def a_kubelet(folder: str) -> FakeKubelet:
    kubelet = FakeKubelet(Path(folder))
    kubelet.registry = kubelet.root / "plugins_registry" / f"{RESOURCE.replace('/', '.')}.sock"
    return kubelet


def test_the_kubelet_hears_of_all_devices_and_each_container_of_its_own_and_nothing_is_left():
    stop, said = Stop(), []
    spoke = threading.Event()

    def hear(text: str) -> None:
        said.append(text)
        spoke.set()

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as threads:
        kubelet = a_kubelet(folder)
        ended = threads.submit(PluginOffer(kubelet.root, kubelet.stand_ins, GPUS, hear).run, stop)
        info = kubelet.register()
        assert (info.type, info.name, list(info.supported_versions)) == (KIND, RESOURCE, [VERSION])
        assert spoke.wait(TIMEOUT_S)
        assert said[0].startswith(f"{RESOURCE} offers gpu-0, gpu-1 of 512Mi")
        with grpc.insecure_channel(f"unix:{info.endpoint}") as channel:
            stub = device_plugin_pb2_grpc.DevicePluginStub(channel)
            told = stub.ListAndWatch(pb.Empty(), timeout=TIMEOUT_S)
            assert [device.ID for device in next(told).devices] == ["gpu-0", "gpu-1"]
            assert not stub.GetDevicePluginOptions(pb.Empty(), timeout=TIMEOUT_S).pre_start_required
            asked = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in (["gpu-1"], ["gpu-1", "gpu-0"])]
            given = stub.Allocate(pb.AllocateRequest(container_requests=asked), timeout=TIMEOUT_S)
            assert [dict(one.envs) for one in given.container_responses] == [
                {VARIABLE: "gpu-1"},
                {VARIABLE: "gpu-0,gpu-1"},
            ]
            stop.ask()
            assert list(told) == [], "it ends in good order"
        ended.result(TIMEOUT_S)
        assert not kubelet.stand_ins.exists()
        assert not kubelet.registry.exists()


def test_a_kubelet_that_does_not_take_it_is_named_with_its_words():
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as threads:
        kubelet = a_kubelet(folder)
        ended = threads.submit(PluginOffer(kubelet.root, kubelet.stand_ins, GPUS, lambda _: None).run, Stop())
        kubelet.register(error="no such version")
        with pytest.raises(ComponentError, match=f"refused {RESOURCE}: no such version"):
            ended.result(TIMEOUT_S)
