"""Lets a loaded model's linear layers ask for adapters: our own decoder's maps, or transformers' modules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.soft_prompt_config import KeyShape
from dormouse_worker.model.adapters.layout import plan_adapters
from dormouse_worker.model.adapters.rows import Lora
from dormouse_worker.model.adapters.store import AdapterStore
from dormouse_worker.model.context import current_adapters
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.lean.decoder import LeanDecoder
from dormouse_worker.model.lean.parts import Layer, Linear
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.weights.loading import LoadedWeights

logger = logging.getLogger(__name__)

Adapt = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (a map's outputs, its inputs) -> outputs


def make_adapters(
    weights: LoadedWeights, settings: EngineSettings, device: Device, keys: KeyShape | str
) -> AdapterStore | None:
    """Return the memory of adapters, None where the settings want none. Raises InvalidSettings, InsufficientMemory.

    `keys` is what `key_shape` says.
    """
    if not settings.enable_lora:
        return None
    layout = plan_adapters(
        weights.module, settings.max_lora_rank, whole=weights.linears, shares=weights.shares, keys=keys
    )
    if not layout.maps:
        raise InvalidSettings(f"enable_lora is set, and {settings.model} has no linear layers that can be adapted")
    store = AdapterStore(
        device,
        layout,
        num_slots=settings.max_loras,
        num_copies=settings.max_cpu_loras or settings.max_loras,
        max_rank=settings.max_lora_rank,
    )
    logger.info("%d slots of %d bytes for adapters of rank %d", store.num_slots, layout.slot_bytes, store.max_rank)
    return store


def adapt_modules(why: Unfit, module: Any, adapters: AdapterStore) -> Unfit:
    """Let transformers' own forward pass add what adapters say; return why it is not our own that does."""
    parts = dict(module.named_modules())
    for names, lora in adapters.loras().items():
        for number, name in enumerate(names):
            adapt = partial(_add, lora.part(number))
            if hasattr(parts[name], "adapt"):  # ranks meet in it
                parts[name].adapt = adapt
            else:
                parts[name].register_forward_hook(partial(_behind, adapt))
    return why


def _behind(adapt: Adapt, _: Any, inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
    return adapt(out, inputs[0])


def _add(lora: Lora, out: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    adapters = current_adapters()
    return out if adapters is None else adapters.add(out, rows, lora)


def adapt_lean(decoder: LeanDecoder, adapters: AdapterStore) -> LeanDecoder:
    """Return our own decoder with maps that add what adapters say."""
    loras = {names[0]: lora for names, lora in adapters.loras().items()}
    return replace(decoder, layers=tuple(_adapt(layer, loras) for layer in decoder.layers))


def _adapt(layer: Layer, loras: Mapping[str, Lora]) -> Layer:
    prefix, attention, mlp = f"model.layers.{layer.attention.call.layer_idx}", layer.attention, layer.mlp

    def adapted(linear: Linear, name: str) -> Linear:
        return replace(linear, lora=loras[f"{prefix}.{name}"])

    return Layer(
        replace(
            attention,
            qkv=adapted(attention.qkv, "self_attn.q_proj"),
            output=adapted(attention.output, "self_attn.o_proj"),
        ),
        replace(mlp, gate_up=adapted(mlp.gate_up, "mlp.gate_proj"), down=adapted(mlp.down, "mlp.down_proj")),
    )
