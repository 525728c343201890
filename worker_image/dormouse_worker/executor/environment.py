"""The variables of one rank's process, and its share of the cores of its pod."""

from __future__ import annotations

import fcntl
import math
import socket
import struct
from collections.abc import Mapping

import msgspec

from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings

SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address


def library_variables(threads: int) -> dict[str, str]:
    """Return what the libraries read when they are imported."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that an index means the same device to CUDA and to NVML
    }


def rank_variables(layout: Layout) -> dict[str, str]:
    """Return where a rank stands, as torch.distributed's tools name it."""
    return {
        "RANK": str(layout.rank),
        "WORLD_SIZE": str(layout.world_size),
        "LOCAL_RANK": str(layout.tensor_rank),
    }


def visible_device(layout: Layout, visible_devices: str | None) -> str:
    """Return the only one of its pod's CUDA devices that a rank shall see; "" where there are too few."""
    devices = visible_devices.split(",") if visible_devices else [str(n) for n in range(layout.tensor)]
    return devices[layout.tensor_rank] if layout.tensor_rank < len(devices) else ""


def rank_share(settings: EngineSettings, host: Host) -> EngineSettings:
    """Return the settings with this rank's share of the pod's cores; the libraries read it before the worker is there.

    Memory is shared out where it is measured. `kv_cache_memory_bytes` and `swap_space_bytes` are each rank's own.
    """
    num_ranks = settings.tensor_parallel_size
    if num_ranks == 1:
        return settings
    threads = max(1, host.num_threads(settings.threads) // num_ranks)
    return msgspec.structs.replace(settings, threads=threads)


def timeout_variables(patience_s: float) -> dict[str, str]:
    """Return how long a rank waits for the others in one exchange; `model.parallel.start` reads it."""
    return {"DORMOUSE_GROUP_TIMEOUT_S": str(math.ceil(patience_s))}


def meeting_variables(master_addr: str, master_port: int, interface: str) -> Mapping[str, str]:
    """Return where torch.distributed meets, and the one interface on which its backends may listen."""
    variables = {"MASTER_ADDR": master_addr, "MASTER_PORT": str(master_port)}
    return variables | ({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {})


def interface_of(address: str) -> str:
    """Return the name of the network interface with this IPv4 address; "" if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
