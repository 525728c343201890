"""Loads an EAGLE head beside its model, after all that must be true of its files is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from dormouse_worker.common.errors import InvalidSettings, ModelNotFound
from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.files import eagle3_files as third
from dormouse_worker.files.draft_files import check_vocabulary, named
from dormouse_worker.files.eagle_files import FC, FC_BIAS, LAYER, as_model_config, check_numbers, check_tensors
from dormouse_worker.files.model_files import ModelFiles, check_model_files
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.bare.choose import STORED
from dormouse_worker.model.bare.config import BareConfig, read_config
from dormouse_worker.model.bare.loader import BareModel, make_layer, reserve
from dormouse_worker.model.bare.tensors import QKV, layer_shapes
from dormouse_worker.model.bare.weight_plan import WeightPlan, plan_plain
from dormouse_worker.model.bits_rules import is_rounded
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.drafting.head import FirstHead, Head, HeadParts, ThirdHead
from dormouse_worker.model.drafting.vocabulary_map import read_targets
from dormouse_worker.model.kv_cache import CacheSpec, LayerSpec
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.lean.parts import Decoder, Layer, Linear, RMSNorm, Rotary
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.rotary import frequencies
from dormouse_worker.model.tensors import ARRAY_DTYPES
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native.library import Kernels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was read of a head's files."""

    config: BareConfig  # of its layer
    layer: str  # how the names of its tensors begin
    weights: WeightPlan
    depths: tuple[int, ...] = ()  # of its model's that an EAGLE-3 head reads; () = it is of EAGLE's first version
    targets: Ints | None = None  # see `ThirdHead`


def load_head(settings: EngineSettings, device: Device, target: BareModel, kernels: Kernels) -> tuple[BareModel, Head]:
    """Return the model as it lies in one cache with its head's layer, and the head.

    Raises ModelNotFound, …Invalid, …Changed, InvalidSettings, …Memory, and names the head.
    """
    if target.quantization != NONE:
        raise InvalidSettings(
            f"quantization is {target.quantization}, and speculation_method is eagle, whose heads read states of plain "
            "weights; set one of them to none or off"
        )
    own = msgspec.structs.replace(settings, model=settings.speculation_model, load_format="auto")
    with named(settings.speculation_model):
        if not own.model_path.is_dir():
            raise ModelNotFound("no such directory")
        files = check_model_files(own.model_path, own.load_format)
        check_vocabulary(settings.model_path, own.model_path)
        plan = _read(files, target)
        weights = reserve(own, device, plan.weights)
        try:
            report = weights.load(own.load_format)
            head = _make(plan, target, weights, kernels)
        except BaseException:
            weights.close()
            raise
    logger.info("%s: %s", files.path, report)
    heads, size = plan.config.num_key_value_heads, plan.config.head_dim
    stored = LayerSpec(heads, size, size, ARRAY_DTYPES[target.dtype], is_rounded(settings))
    spec = target.cache_spec.beside(CacheSpec.of((stored,), settings.block_size))
    return replace(target, cache_spec=spec), head


def _read(files: ModelFiles, target: BareModel) -> _Plan:
    """Return a head's sizes, and where its tensors go."""
    embedding = target.native.decoder.embedding
    assert embedding is not None, "the whole model is here"
    said = as_model_config(files.config)
    check_numbers(said, {"hidden_size": embedding.size, "vocab_size": target.vocab_size, "num_hidden_layers": 1})
    config = read_config(said)
    if isinstance(config, Unfit):
        raise InvalidSettings(f"its layer is not one that is computed here: {config.reason}")
    layer = third.layer_of(files.tensors)
    return _read_first(files, config, target) if layer is None else _read_third(files, config, target, layer)


def _read_first(files: ModelFiles, config: BareConfig, target: BareModel) -> _Plan:
    of_layer = layer_shapes(config)
    del of_layer[third.INPUT_NORM]
    shapes = _shapes(files, config, 2, LAYER, of_layer)
    check_tensors(files.tensors, shapes, STORED[target.dtype])
    return _Plan(config, LAYER, plan_plain(shapes, ARRAY_DTYPES[target.dtype], (LAYER,)))


def _read_third(files: ModelFiles, config: BareConfig, target: BareModel, layer: str) -> _Plan:
    third.check_kind(files.config)
    depths = third.depths_of(files.config, len(target.native.decoder.layers))
    hidden, own_vocabulary = config.hidden_size, third.own_vocabulary(files.config, target.vocab_size)
    of_layer = layer_shapes(config) | {third.HIDDEN_NORM: (hidden,)}
    of_layer |= {f"{name}.weight": (of_layer[f"{name}.weight"][0], 2 * hidden) for name in QKV}
    shapes = _shapes(files, config, len(depths), layer, of_layer)
    shapes |= {third.NORM: (hidden,), third.HEAD: (own_vocabulary, hidden)}
    mapped: dict[str, tuple[int, ...]] = {third.D2T: (own_vocabulary,)} if own_vocabulary < target.vocab_size else {}
    if third.D2T in files.tensors:
        mapped[third.D2T] = (own_vocabulary,)
    if third.T2D in files.tensors:
        mapped[third.T2D] = (target.vocab_size,)
    dtype = STORED[target.dtype]
    check_tensors(files.tensors, shapes | mapped, dtype, unread=third.UNREAD, others=third.TYPES)
    targets = read_targets(files.tensors, target.vocab_size)
    return _Plan(config, layer, plan_plain(shapes, ARRAY_DTYPES[target.dtype], (layer,)), depths, targets)


def _shapes(
    files: ModelFiles, config: BareConfig, num_parts: int, layer: str, of_layer: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the first map, which reads so many vectors side by side, and of the layer."""
    shapes: dict[str, tuple[int, ...]] = {FC: (config.hidden_size, num_parts * config.hidden_size)}
    if FC_BIAS in files.tensors:
        shapes[FC_BIAS] = (config.hidden_size,)
    return shapes | {layer + name: shape for name, shape in of_layer.items()}


def _make(plan: _Plan, target: BareModel, weights: WeightStore, kernels: Kernels) -> Head:
    model, own = target.native.decoder, plan.weights.shapes
    assert model.embedding is not None, "the whole model is here"
    is_third = bool(plan.depths)
    decoder = Decoder(
        embedding=None,
        rotary=Rotary(frequencies(plan.config.rope, plan.config.head_dim), 1.0),
        layers=(_make_layer(plan, weights, is_third=is_third),),
        norm=_norm(plan, weights, third.NORM) if is_third else None,
        head=Linear(weights.tensor(third.HEAD), None) if is_third else model.head,
    )
    first = Linear(weights.tensor(FC), weights.tensor(FC_BIAS) if FC_BIAS in own else None)
    parts = HeadParts(NativeDecoder(decoder, kernels), first, model.embedding, weights, target.dtype, kernels)
    return ThirdHead(parts, plan.depths, plan.targets, target.vocab_size) if is_third else FirstHead(parts)


def _make_layer(plan: _Plan, weights: WeightStore, *, is_third: bool) -> Layer:
    linear = plan.weights.maps_in(weights)
    layer = make_layer(plan.config, weights, linear, 0, plan.layer, has_norm=is_third)
    if not is_third:
        return layer
    norm = _norm(plan, weights, plan.layer + third.HIDDEN_NORM)
    return replace(layer, attention=replace(layer.attention, norm=norm, beside_norm=layer.attention.norm))


def _norm(plan: _Plan, weights: WeightStore, name: str) -> RMSNorm:
    return RMSNorm(weights.tensor(name), plan.config.rms_norm_eps)
