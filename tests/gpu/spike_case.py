"""What sleep rests on: memory leaves an arena and comes back, and a graph recorded before replays the same."""

from __future__ import annotations

import time

import torch

from bench.results import AtLeast, AtMost, Row
from dormouse_worker.model.device.arena import Arena
from tests.gpu.device_kit import Kit

BATCH = 8
MIN_FREED = 0.99  # of the arena: what else moves on the device meanwhile is not ours


def run(kit: Kit) -> list[Row]:
    """Replay a graph of matrix products over an arena that slept while somebody else used its memory."""
    device, size = kit.device, kit.scale.arena_bytes
    arena, copy = Arena("weights", device.memory, size), Arena("copy", device.copies, size)
    try:
        for one in (arena, copy):
            one.prepare(size)
            one.map()
        return _sleep_and_replay(kit, arena, copy)
    finally:
        device.synchronize()
        for one in (arena, copy):
            one.close()


def _sleep_and_replay(kit: Kit, arena: Arena, copy: Arena) -> list[Row]:
    device, size = kit.device, kit.scale.arena_bytes
    weights = _fill(kit, arena)
    on_device, on_host = (one.tensor(0, (size,), torch.uint8) for one in (arena, copy))
    device.copy(on_host, on_device)
    rows = torch.randn(BATCH, kit.scale.matrix_size, device=device.torch_device, dtype=kit.scale.dtype)
    output = torch.empty_like(rows)
    with torch.inference_mode():
        graph = kit.make_graph_maker().record(lambda: _multiply(rows, weights, output))
        graph.replay()
    expected = output.clone()
    device.synchronize()
    with kit.neighbour() as neighbour:
        awake_free = device.memory.free_bytes()
        started_s = time.perf_counter()
        arena.unmap()
        unmap_s = time.perf_counter() - started_s
        freed = device.memory.free_bytes() - awake_free
        neighbour.take(size // 2)
        neighbour.give()
        started_s = time.perf_counter()
        arena.prepare(size)
        arena.map()
        map_s = time.perf_counter() - started_s
        device.copy(on_device, on_host)
        wake_s = time.perf_counter() - started_s
    output.zero_()
    with torch.inference_mode():
        graph.replay()
    device.synchronize()
    num_wrong = int((output.view(torch.uint8) != expected.view(torch.uint8)).sum())
    return [
        Row("spike: bytes of a replay that differ after the sleep", num_wrong, "bytes", goal=AtMost(0)),
        Row("spike: share of the arena that others could use", freed / size, "", goal=AtLeast(MIN_FREED)),
        Row("spike: unmap", 1e3 * unmap_s, "ms"),
        Row("spike: create and map", 1e3 * map_s, "ms"),
        Row("spike: map and copy", size / wake_s / 1e9, "GB/s"),
    ]


def _fill(kit: Kit, arena: Arena) -> list[torch.Tensor]:
    """Return square matrices that fill the arena and keep the scale of what they are multiplied with."""
    size, dtype = kit.scale.matrix_size, kit.scale.dtype
    count = kit.scale.arena_bytes // (size * size * dtype.itemsize)
    weights = arena.tensor(0, (count, size, size), dtype)
    for matrix in weights:
        matrix.normal_(std=size**-0.5)
    return list(weights)


def _multiply(rows: torch.Tensor, weights: list[torch.Tensor], output: torch.Tensor) -> None:
    hidden = rows
    for weight in weights:
        hidden = torch.nn.functional.linear(hidden, weight)
    output.copy_(hidden)
