"""What the device itself can do, measured here and now: the limits that our figures are shares of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.gpu.device_kit import GIB, MIB, Kit

REPEATS = 5


@dataclass(frozen=True)
class Limits:
    """Rates per second."""

    memory_bytes: float  # a copy on the device, bytes read and written
    flops: float  # a large matrix product in bfloat16
    host_copy_bytes: float  # pinned host memory to the device


def measure_limits(kit: Kit) -> Limits:
    """Measure; takes 5 GiB of a GPU's memory for a moment."""
    num_bytes, size = (2 * GIB, 8192) if kit.is_gpu else (8 * MIB, 128)
    where = kit.device.torch_device
    source, target = (torch.empty(num_bytes, dtype=torch.uint8, device=where) for _ in range(2))
    on_device_s = best_s(kit, lambda: target.copy_(source))
    host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=kit.is_gpu).zero_()
    from_host_s = best_s(kit, lambda: target.copy_(host, non_blocking=True))
    left, right = (torch.randn(size, size, device=where, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    product_s = best_s(kit, lambda: torch.matmul(left, right, out=product))
    return Limits(2 * num_bytes / on_device_s, 2.0 * size**3 / product_s, num_bytes / from_host_s)


def best_s(kit: Kit, work: Callable[[], object], calls: int = 4) -> float:
    """Return the shortest time of one call, several of them at a time, after a first one that does not count."""
    work()
    times = []
    for _ in range(REPEATS):
        kit.device.synchronize()
        started_s = time.perf_counter()
        for _ in range(calls):
            work()
        kit.device.synchronize()
        times.append((time.perf_counter() - started_s) / calls)
    return min(times)
