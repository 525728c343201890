"""Chooses how a model's weights are read, lays them out and lets the module live on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.files.adapter_files import Shape
from dormouse_worker.files.model_files import ModelFiles, check_model_files
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.adapters.layout import find_linears
from dormouse_worker.model.bits_rules import check_cache_dtype, check_quantization
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.foreign import foreign_errors
from dormouse_worker.model.lean.build import joined_parameters
from dormouse_worker.model.parallel.cut import cut, torn_weights
from dormouse_worker.model.parallel.shards import Share
from dormouse_worker.model.quantized.convert import convert
from dormouse_worker.model.quantized.expert_plan import has_packed_experts, keep_saved_experts, plan_experts
from dormouse_worker.model.quantized.gguf_plan import plan_gguf, require_generation
from dormouse_worker.model.quantized.gguf_source import GgufSource
from dormouse_worker.model.quantized.grouped import CHUNK
from dormouse_worker.model.quantized.modules import find_formats, use_kernels
from dormouse_worker.model.quantized.online import OnlineSource
from dormouse_worker.model.quantized.stored import StoredSource
from dormouse_worker.model.quantized.stored_config import plain_config, read_kind
from dormouse_worker.model.quantized.stored_kinds import StoredKind
from dormouse_worker.model.quantized.stored_plan import keep_saved, plan_stored
from dormouse_worker.model.vision.families import what_is_read
from dormouse_worker.model.weights.dtypes import DTYPES, choose_dtype
from dormouse_worker.model.weights.dummy import DummySource
from dormouse_worker.model.weights.kind import GENERATES, SEES, ModelKind
from dormouse_worker.model.weights.layout import plan_layout
from dormouse_worker.model.weights.pretrained import PretrainedSource
from dormouse_worker.model.weights.reader import CheckpointSource, can_convert
from dormouse_worker.model.weights.report import collected, judge, wrong_shape
from dormouse_worker.model.weights.sharded import check_shard
from dormouse_worker.model.weights.skeleton import build_skeleton, computed_buffers, find_origins, iter_tensors
from dormouse_worker.model.weights.slices import SlicedSource
from dormouse_worker.model.weights.source import Contents, LoadReport, WeightSource
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.model.weights.strangers import Places
from dormouse_worker.native.library import Missing, load_kernels


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A module whose tensors are views of the store's memory."""

    module: Any
    store: WeightStore
    report: LoadReport
    num_parameters: int  # of the whole model, whatever of it is here
    linears: Mapping[str, Shape]  # of the whole model, those that can be adapted
    shares: Mapping[str, Share]  # what each tensor is of the whole model's; none = all of it


@dataclass(frozen=True, slots=True)
class _StoredAs:
    """How the files keep linear maps."""

    kind: StoredKind | None  # None = plain, or as GGUF's tensors say
    keeps_bits: bool  # whether maps stay as they are, where they can
    packs_experts: bool  # whether experts are in MXFP4, and stay so


@dataclass(frozen=True, slots=True)
class _Plan:
    """A module whose tensors say what is needed, and who has their contents."""

    module: Any
    source: WeightSource
    extras: Mapping[str, torch.Tensor]  # what the source does not have
    num_parameters: int
    linears: Mapping[str, Shape]
    shares: Mapping[str, Share]


def load_weights(
    config: Any,
    settings: EngineSettings,
    device: Device,
    files: ModelFiles,
    layout: Layout | None = None,
    *,
    kind: ModelKind = GENERATES,
) -> LoadedWeights:
    """Load a rank's part into the device's memory.

    Raises WorkerError, or whatever transformers does; nothing is held then.
    """
    layout, stored_kind = layout or Layout(), read_kind(getattr(config, "quantization_config", None))
    packs_experts = has_packed_experts(config, device)
    config = plain_config(config) if packs_experts or stored_kind is not None else config
    is_stored = getattr(config, "quantization_config", None) is not None
    check_quantization(settings, layout, is_stored=is_stored, can_round=kind.rounds is not None)
    check_cache_dtype(settings, generates=kind is GENERATES, read=what_is_read(config) if kind is SEES else "")
    keeps_bits = kind is GENERATES and _has_kernels(settings, device)
    plan = _plan(config, settings, files, layout, kind, _StoredAs(stored_kind, keeps_bits, packs_experts))
    if keeps_bits:
        use_kernels(plan.module, load_kernels())
    module = plan.module.eval().requires_grad_(requires_grad=False)
    tensors = sorted(iter_tensors(module), key=lambda named: named[0] not in plan.extras)  # what all layers need first
    memory = plan_layout(tensors, joined_parameters(module) if settings.model_impl != "transformers" else ())
    for name, tensor in tensors:
        if name not in plan.extras:
            tensor.data = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)  # the source alone holds them now
    contents = Contents(memory, plan.source, plan.extras, _may_be_infinite(tensors))
    try:
        store = WeightStore(device, contents, keeps_host_copy=settings.keep_host_copy)
    except OSError as error:
        raise InsufficientMemory(f"{files.path}: no address range of {memory.num_bytes} bytes: {error}") from error
    try:
        with device.counting_on(plan.source.held_bytes):
            report = store.load(settings.load_format)
        for name, tensor in tensors:
            tensor.data = store.tensor(name)
    except BaseException:
        store.close()
        raise
    return LoadedWeights(module, store, report, plan.num_parameters, plan.linears, plan.shares)


def _has_kernels(settings: EngineSettings, device: Device) -> bool:
    """Return whether our kernels may compute with numbers of 4 bits; torch would unpack them in each pass."""
    on_processor = device.torch_device.type == "cpu" and not device.has_copy_engine
    is_ours = settings.model_impl != "transformers" and settings.attention_backend in ("auto", "native")
    is_as_stored = settings.quantization == NONE
    return on_processor and is_ours and is_as_stored and not isinstance(load_kernels(), Missing)


def _may_be_infinite(tensors: Iterable[tuple[str, torch.Tensor]]) -> frozenset[str]:
    """Return the names of buffers, which may be masks, and of attention sinks."""
    return frozenset(
        name for name, tensor in tensors if not isinstance(tensor, torch.nn.Parameter) or name.endswith(".sinks")
    )


def _plan(
    config: Any,
    settings: EngineSettings,
    files: ModelFiles,
    layout: Layout,
    kind: ModelKind,
    stored_as: _StoredAs,
) -> _Plan:
    if settings.load_format == "dummy":
        module = build_skeleton(config, choose_dtype(config, settings, {}), kind).module
        return _finish(module, DummySource(settings.seed), settings, layout, kind)
    if settings.load_format == "sharded_state":
        return _plan_sharded(config, settings, files, layout, kind)
    if files.gguf is not None or stored_as.kind is not None or stored_as.packs_experts:
        return _plan_stored(config, settings, files, layout, kind, stored_as)
    found = _plan_fast(config, settings, files.tensors, kind) or _plan_pretrained(config, settings, files, layout, kind)
    return _finish(*found, settings, layout, kind)


def _plan_stored(
    config: Any,
    settings: EngineSettings,
    files: ModelFiles,
    layout: Layout,
    kind: ModelKind,
    stored_as: _StoredAs,
) -> _Plan:
    dtype = choose_dtype(config, settings, files.tensors)
    skeleton = build_skeleton(config, dtype, kind)
    num_parameters = _count(skeleton.module)
    keeps_bits = stored_as.keeps_bits and dtype in (torch.float32, torch.bfloat16)
    joined = joined_parameters(skeleton.module) if keeps_bits else ()
    torn = torn_weights(skeleton.module, layout, CHUNK) if joined else frozenset()
    checkpoint = partial(_checkpoint, settings)
    source: WeightSource
    if files.gguf is not None:
        require_generation(settings.task, kind)
        source = plan_gguf(skeleton, files.gguf, checkpoint, joined, torn)
    elif stored_as.packs_experts:
        source = plan_experts(skeleton, files.tensors, checkpoint)
    else:
        assert stored_as.kind is not None, "asked for by the plan"
        source = plan_stored(skeleton, stored_as.kind, files.tensors, checkpoint, joined, torn)
    return replace(_finish(skeleton.module, source, settings, layout, kind), num_parameters=num_parameters)


def _finish(module: Any, source: WeightSource, settings: EngineSettings, layout: Layout, kind: ModelKind) -> _Plan:
    """Quantize a whole module, whose plain weights the source has, and cut it down to the rank's part, as is wanted."""
    num_parameters, linears = _count(module), find_linears(module)
    if settings.quantization != NONE:
        assert kind.rounds is not None, "checked"
        source = OnlineSource(source, convert(module, settings.quantization, kind.rounds))
    formats = find_formats(module)
    shares = cut(module, layout) if layout.world_size > 1 else {}
    if shares:
        makes_rows = isinstance(source, OnlineSource | StoredSource | GgufSource)
        source = SlicedSource(source, shares, formats if makes_rows else None)
    return _Plan(module, source, computed_buffers(module), num_parameters, linears, shares)


def _count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _plan_fast(
    config: Any, settings: EngineSettings, stored: Mapping[str, StoredTensor], kind: ModelKind
) -> tuple[Any, WeightSource] | None:
    """Return None unless every tensor of the module lies in the files under its name and in its shape."""
    if getattr(config, "quantization_config", None) is not None:
        return None
    skeleton = build_skeleton(config, choose_dtype(config, settings, stored), kind)
    places = Places(skeleton.module)
    places.check_types(stored)
    if skeleton.tied & stored.keys():  # equal or not: transformers compares them, and goes by that
        return None
    origins = find_origins(skeleton)
    if origins is None:
        return None
    if not _all_there(skeleton.module, origins, stored):
        return None
    places.check_strangers(stored.keys() - set(origins.values()), stored)
    return skeleton.module, _checkpoint(settings, origins)


def _all_there(module: Any, origins: Mapping[str, str], stored: Mapping[str, StoredTensor]) -> bool:
    """Return whether the files have every tensor that is read as it stands. Raises ModelInvalid for a wrong shape."""
    needed = [(origins[name], tensor) for name, tensor in iter_tensors(module) if name in origins]
    if not all(name in stored and can_convert(stored[name].dtype, tensor.dtype) for name, tensor in needed):
        return False  # it may have another name there
    for name, tensor in needed:
        if stored[name].shape != tuple(tensor.shape):
            raise wrong_shape(name, stored[name].file, stored[name].shape, tuple(tensor.shape))
    return True


def _plan_sharded(config: Any, settings: EngineSettings, files: ModelFiles, layout: Layout, kind: ModelKind) -> _Plan:
    module = build_skeleton(config, choose_dtype(config, settings, {}), kind).module
    num_parameters, linears = _count(module), find_linears(module)
    if settings.quantization != NONE:
        convert(module, settings.quantization)
    else:
        keep_saved(module, files.tensors, layout)
        keep_saved_experts(module, files.tensors)
    shares = cut(module, layout) if layout.world_size > 1 else {}
    extras = computed_buffers(module)
    slots = {slot.name: slot for slot in plan_layout(iter_tensors(module)).slots if slot.name not in extras}
    check_shard(files, slots)
    source = _checkpoint(settings, {name: name for name in slots}, layout)
    return _Plan(module, source, extras, num_parameters, linears, shares)


def _checkpoint(settings: EngineSettings, names: Mapping[str, str], layout: Layout | None = None) -> CheckpointSource:
    return CheckpointSource(lambda: check_model_files(settings.model_path, settings.load_format, layout).tensors, names)


def _plan_pretrained(
    config: Any, settings: EngineSettings, files: ModelFiles, layout: Layout, kind: ModelKind
) -> tuple[Any, WeightSource]:
    def load_again() -> Any:
        files = check_model_files(settings.model_path, settings.load_format)
        with foreign_errors(files.path):
            return _load_pretrained(config, settings, files, kind)

    module = _load_pretrained(config, settings, files, kind)
    reads_once = layout.world_size == 1 and settings.quantization == NONE  # whole rows are read, some of them twice
    return module, PretrainedSource(load_again, iter_tensors(module), reads_once=reads_once)


def _load_pretrained(config: Any, settings: EngineSettings, files: ModelFiles, kind: ModelKind) -> Any:
    with collected() as findings:
        module = kind.auto_class.from_pretrained(
            settings.model_path,
            config=config,
            dtype=DTYPES.get(settings.dtype, "auto"),
            attn_implementation=kind.register(),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            **kind.options,
        )
    for found in findings:
        judge(found, module, files.path, files.tensors)
    return module
