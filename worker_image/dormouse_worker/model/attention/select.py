"""Makes the attention backend of a worker: chosen by what it can, and where several can, by what they take."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import torch

from dormouse_worker.model.attention.choose import choose, require_known
from dormouse_worker.model.attention.interface import AttentionBackend, BackendFactory, BackendSizes
from dormouse_worker.model.attention.machine import describe_machine
from dormouse_worker.model.attention.measure import make_run, measure, trial_passes
from dormouse_worker.model.attention.registry import backend_factories
from dormouse_worker.model.kv_cache import LayerCache

logger = logging.getLogger(__name__)

TRIAL_BLOCKS = 1024  # of a pool that is thrown away; tables go round it


def check_setting(setting: str) -> None:
    """Raise InvalidSettings if there is no such backend: that much can be told before a model is loaded."""
    require_known(setting, backend_factories())


def select_backend(
    setting: str,
    sizes: BackendSizes,
    device: torch.device,
    *,
    max_num_batched_tokens: int,
    wants_graphs: bool,
    is_alone: bool = True,
) -> AttentionBackend:
    """Return the backend for these layers. Raises InvalidSettings, or Internal if none computes on this device."""
    factories = backend_factories()
    machine = describe_machine(device)
    choice = choose(setting, machine, sizes.shapes, factories, wants_graphs=wants_graphs, is_alone=is_alone)
    logger.info("%s", choice)
    candidates = {name: factories[name] for name in choice.candidates}
    if len(candidates) == 1:
        return candidates.popitem()[1](sizes)
    return fastest(candidates, sizes, device, max_num_batched_tokens)


def fastest(
    candidates: Mapping[str, BackendFactory], sizes: BackendSizes, device: torch.device, max_num_batched_tokens: int
) -> AttentionBackend:
    """Return the backend that computes fastest; timed with the first layer's shape, which nearly all layers share.

    Raises Internal if all fail.
    """
    shape = sizes.shapes[0]
    num_slots = TRIAL_BLOCKS * shape.block_size
    layer = LayerCache(
        torch.zeros(num_slots, shape.num_kv_heads, shape.key_size, dtype=shape.dtype, device=device),
        torch.zeros(num_slots, shape.num_kv_heads, shape.value_size, dtype=shape.dtype, device=device),
    )
    passes = trial_passes(sizes, num_blocks=TRIAL_BLOCKS, max_num_batched_tokens=max_num_batched_tokens)
    backends = {name: factory(sizes) for name, factory in candidates.items()}
    runs = {name: make_run(backend, shape, layer, passes) for name, backend in backends.items()}
    found = measure(runs, clock=time.perf_counter, synchronize=lambda: _synchronize(device))
    logger.info("attention by %s, the fastest: %s", found.fastest, found)
    return backends[found.fastest]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
