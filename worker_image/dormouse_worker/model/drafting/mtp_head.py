"""The head for multi-token prediction that lies in its model's own checkpoint, by transformers' layer for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.modeling_layers import MtpLayer

from dormouse_worker.common.errors import InsufficientMemory, InvalidSettings
from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.files import mtp_files
from dormouse_worker.files.eagle_files import check_tensors
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.drafting.load_head import STORED
from dormouse_worker.model.drafting.torch_head import DraftingHead, Rows, beside
from dormouse_worker.model.kv_cache import CacheSpec
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.states import find_layers
from dormouse_worker.model.tensors import Dtype, name_of
from dormouse_worker.model.weights.checkpoint import PlainSource, Tensors
from dormouse_worker.model.weights.layout import plan_layout
from dormouse_worker.model.weights.source import Contents
from dormouse_worker.model.weights.store import WeightStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MtpHead:
    """Implements `TorchHead` over its model's embedding, rotary embedding and output matrix."""

    layer: MtpLayer
    rotary: Any
    embed: Rows
    project: Rows

    @property
    def weight(self) -> torch.Tensor:
        """See `TorchHead`."""
        weight: torch.Tensor = self.layer.eh_proj.weight
        return weight

    def guess(
        self, token_ids: torch.Tensor, positions: torch.Tensor, states: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TorchHead`. Its own states are normed as the model's are."""
        vectors, places = self.embed(token_ids)[None], positions[None]
        normed = self.layer(
            vectors,
            states[None],
            position_embeddings=self.rotary(vectors, position_ids=places),
            attention_mask=None,
            position_ids=places,
            past_key_values=None,
        )
        own: torch.Tensor = normed[0][rows]
        return own, self.project(own)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One of the files before there is memory for it."""

    shape: tuple[int, ...]
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class _Plan:
    """The tensors of a head."""

    shapes: Mapping[str, tuple[int, ...]]  # of its module, by their names there
    parts: Mapping[str, Mapping[str, tuple[int, ...]]]  # of the files, by the names of those
    dtype: torch.dtype

    @property
    def tensors(self) -> dict[str, _Tensor]:
        """Return those of the files, in order."""
        parts = (part for each in self.parts.values() for part in each.items())
        return {
            name: _Tensor(shape, torch.float32 if mtp_files.is_float32(name) else self.dtype) for name, shape in parts
        }


def load_mtp(settings: EngineSettings, device: Device, model: LoadedModel) -> DraftingHead:
    """Return the head. Raises InvalidSettings where none is read, ModelInvalid, …Changed, …Memory."""
    known = beside(settings, model)
    for name, value, allowed in (
        ("quantization", model.quantization, NONE),
        ("load_format", settings.load_format, "auto"),
    ):
        if value != allowed:
            raise InvalidSettings(
                f"{name} is {value}, and speculation_method is mtp, whose head is read as it lies in the model's "
                f"checkpoint; set {name} to {allowed}, or use suffix"
            )
    files = check_model_files(settings.model_path, settings.load_format)
    mtp_files.check_mtp(files.config)
    begins = f"model.layers.{known.num_layers}."
    layer = _blank_layer(model.module)
    plan = _plan(layer, begins, known.dtype)
    check_tensors(
        {name: stored for name, stored in files.tensors.items() if name.startswith(begins)},
        {name: tensor.shape for name, tensor in plan.tensors.items()},
        STORED[name_of(known.dtype)],
        unread=frozenset(begins + name for name in mtp_files.UNREAD),
        others={name: "F32" for name in plan.tensors if mtp_files.is_float32(name)},
    )
    weights = _reserve(settings, device, plan)
    try:
        report = weights.load(settings.load_format)
        _fill(layer, plan, weights)
    except BaseException:
        weights.close()
        raise
    logger.info("%s, its head for multi-token prediction: %s", files.path, report)
    module: Any = model.module
    head = MtpHead(layer, module.base_model.rotary_emb, module.get_input_embeddings(), module.get_output_embeddings())
    stored, size = model.cache_spec.layers[-1], model.cache_spec.block_size
    return DraftingHead(
        words="its own head for multi-token prediction",
        config=settings.model_path / "config.json",
        target=replace(model, cache_spec=model.cache_spec.beside(CacheSpec.of((stored,), size))),
        head=head,
        weights=weights,
        hidden_size=known.hidden_size,
        depths=(),
        shape=model.attention_shapes[-1],
    )


def _blank_layer(module: Any) -> MtpLayer:
    """Return its module, without memory; its layer is of the class of the model's own."""
    config: Any = module.config.get_mtp_config()
    last: Any = find_layers(module)[-1]
    config._attn_implementation = module.config._attn_implementation  # noqa: SLF001  # nothing public
    with torch.device("meta"):
        return MtpLayer(config, type(last), type(last.input_layernorm), 0).eval().requires_grad_(requires_grad=False)


def _plan(layer: MtpLayer, begins: str, dtype: torch.dtype) -> _Plan:
    shapes = {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}
    parts = {
        name: {begins + part: of_part for part, of_part in mtp_files.stored_parts(name, shape).items()}
        for name, shape in shapes.items()
    }
    return _Plan(shapes, parts, dtype)


def _reserve(settings: EngineSettings, device: Device, plan: _Plan) -> WeightStore:
    def list_tensors() -> Tensors:
        return check_model_files(settings.model_path, settings.load_format).tensors

    layout = plan_layout(plan.tensors.items(), [[*parts] for parts in plan.parts.values()], identify=id)
    source = PlainSource(list_tensors, {name: name for name in plan.tensors})
    try:
        return WeightStore(device, Contents(layout, source, {}), keeps_host_copy=False)
    except OSError as error:
        raise InsufficientMemory(
            f"{settings.model}: no address range of {layout.num_bytes} bytes for its head: {error}"
        ) from error


def _fill(layer: MtpLayer, plan: _Plan, weights: WeightStore) -> None:
    """Let a module live on what was read."""
    tensors = {name: weights.span([*parts]).view(plan.shapes[name]) for name, parts in plan.parts.items()}
    layer.load_state_dict(tensors, assign=True)
