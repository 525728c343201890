"""Loads an EAGLE head for a model, after all that must be true of its files is. Who computes with it comes later."""

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
from dormouse_worker.model.bare.config import BareConfig, read_config
from dormouse_worker.model.bare.loader import make_layer, reserve
from dormouse_worker.model.bare.tensors import QKV, layer_shapes
from dormouse_worker.model.bare.weight_plan import WeightPlan, plan_plain
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.drafting.vocabulary_map import read_targets
from dormouse_worker.model.kv_cache import LayerSpec
from dormouse_worker.model.lean.parts import Layer, Linear, RMSNorm
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.rotary import frequencies
from dormouse_worker.model.scratch import Floats
from dormouse_worker.model.tensors import Dtype, name_of
from dormouse_worker.model.weights.store import WeightStore

logger = logging.getLogger(__name__)

STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}  # what heads compute in, and its name in a file


@dataclass(frozen=True, slots=True)
class Beside:
    """What of a model its head has to go with."""

    hidden_size: int
    vocab_size: int
    num_layers: int
    dtype: Dtype  # torch's, or numpy's
    quantization: str


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head in memory. Its embedding is its model's, and so is its output matrix where it has none."""

    layer: Layer
    first: Linear  # [H, columns], what its layer begins with
    norm: RMSNorm | None  # before its own output matrix
    output: Linear | None  # [Vd, H]
    frequencies: Floats  # of its rotary embedding
    depths: tuple[int, ...]  # see `_Plan`
    targets: Ints | None  # [Vd] which token of the model each of its own is; None = the same
    stored: LayerSpec  # what its layer keeps of a token
    weights: WeightStore  # owns the memory of its tensors

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of its tensors."""
        return sum(slot.num_bytes for slot in self.weights.layout.slots)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was read of a head's files."""

    config: BareConfig  # of its layer
    layer: str  # how the names of its tensors begin
    weights: WeightPlan
    depths: tuple[int, ...] = ()  # of its model's that an EAGLE-3 head reads; () = it is of EAGLE's first version
    targets: Ints | None = None  # see `LoadedHead`


def load_head(settings: EngineSettings, device: Device, target: Beside) -> LoadedHead:
    """Return the settings' head. Raises ModelNotFound, …Invalid, …Changed, InvalidSettings, …Memory, and names it."""
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
            head = _make(plan, settings, target.dtype, weights)
        except BaseException:
            weights.close()
            raise
    logger.info("%s: %s", files.path, report)
    return head


def _read(files: ModelFiles, target: Beside) -> _Plan:
    """Return a head's sizes, and where its tensors go."""
    said = as_model_config(files.config)
    check_numbers(said, {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size, "num_hidden_layers": 1})
    config = read_config(said)
    if isinstance(config, Unfit):
        raise InvalidSettings(f"its layer is not one that is computed here: {config.reason}")
    layer = third.layer_of(files.tensors)
    return _read_first(files, config, target) if layer is None else _read_third(files, config, target, layer)


def _read_first(files: ModelFiles, config: BareConfig, target: Beside) -> _Plan:
    of_layer = layer_shapes(config)
    del of_layer[third.INPUT_NORM]
    shapes = _shapes(files, config, 2, LAYER, of_layer)
    check_tensors(files.tensors, shapes, STORED[name_of(target.dtype)])
    return _Plan(config, LAYER, plan_plain(shapes, target.dtype, (LAYER,)))


def _read_third(files: ModelFiles, config: BareConfig, target: Beside, layer: str) -> _Plan:
    third.check_kind(files.config)
    depths = third.depths_of(files.config, target.num_layers)
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
    dtype = STORED[name_of(target.dtype)]
    check_tensors(files.tensors, shapes | mapped, dtype, unread=third.UNREAD, others=third.TYPES)
    targets = read_targets(files.tensors, target.vocab_size)
    return _Plan(config, layer, plan_plain(shapes, target.dtype, (layer,)), depths, targets)


def _shapes(
    files: ModelFiles, config: BareConfig, num_parts: int, layer: str, of_layer: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the first map, which reads so many vectors side by side, and of the layer."""
    shapes: dict[str, tuple[int, ...]] = {FC: (config.hidden_size, num_parts * config.hidden_size)}
    if FC_BIAS in files.tensors:
        shapes[FC_BIAS] = (config.hidden_size,)
    return shapes | {layer + name: shape for name, shape in of_layer.items()}


def _make(plan: _Plan, settings: EngineSettings, dtype: Dtype, weights: WeightStore) -> LoadedHead:
    is_third, heads, size = bool(plan.depths), plan.config.num_key_value_heads, plan.config.head_dim
    return LoadedHead(
        layer=_make_layer(plan, weights, is_third=is_third),
        first=Linear(weights.tensor(FC), weights.tensor(FC_BIAS) if FC_BIAS in plan.weights.shapes else None),
        norm=_norm(plan, weights, third.NORM) if is_third else None,
        output=Linear(weights.tensor(third.HEAD), None) if is_third else None,
        frequencies=frequencies(plan.config.rope, size),
        depths=plan.depths,
        targets=plan.targets,
        stored=LayerSpec(heads, size, size, dtype, settings.kv_cache_dtype),
        weights=weights,
    )


def _make_layer(plan: _Plan, weights: WeightStore, *, is_third: bool) -> Layer:
    linear = plan.weights.maps_in(weights)
    layer = make_layer(plan.config, weights, linear, 0, plan.layer, has_norm=is_third)
    if not is_third:
        return layer
    norm = _norm(plan, weights, plan.layer + third.HIDDEN_NORM)
    return replace(layer, attention=replace(layer.attention, norm=norm, beside_norm=layer.attention.norm))


def _norm(plan: _Plan, weights: WeightStore, name: str) -> RMSNorm:
    return RMSNorm(weights.tensor(name), plan.config.rms_norm_eps)
