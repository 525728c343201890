"""Loads a model into arrays: weights as the kernels read them, and what the cache must hold for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from dormouse_worker.common.errors import InsufficientMemory, InvalidSettings
from dormouse_worker.common.ipc import NATIVE, ModelInfo
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.bare.choose import read_model
from dormouse_worker.model.bare.config import BareConfig
from dormouse_worker.model.bare.tensors import EMBEDDING, GATE_UP, HEAD, NORM, QKV, prefix
from dormouse_worker.model.bare.weight_plan import Maps, WeightPlan, plan_weights
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.device.check import resolve_dtype
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.kv_cache import CacheSpec, LayerSpec
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.lean.parts import Attention, Decoder, Embedding, GatedMLP, Layer, Linear, RMSNorm, Rotary
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.rotary import frequencies
from dormouse_worker.model.tensors import ARRAY_DTYPES, name_of
from dormouse_worker.model.weights.checkpoint import Tensors
from dormouse_worker.model.weights.source import Contents, LoadReport
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native.library import Kernels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BareModel:
    """A model in the host's memory, ready for packed forward passes by our kernels."""

    native: NativeDecoder
    cache_spec: CacheSpec
    weights: WeightStore  # owns the memory of all tensors
    load_report: LoadReport
    max_model_len: int
    vocab_size: int
    dtype: str
    num_parameters: int
    quantization: str

    @property
    def layout(self) -> Layout:
        """Return which part of the model it is: the whole."""
        return Layout()

    @property
    def sides(self) -> None:
        """Return that no encoder reads its prompts."""

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of all tensors, shared ones once."""
        return sum(slot.num_bytes for slot in self.weights.layout.slots)

    @property
    def info(self) -> ModelInfo:
        """Return what the front cannot read from files."""
        report, stored_as = self.load_report, "" if self.quantization == NONE else f" {self.quantization}"
        stored_as += self.cache_spec.suffix
        return ModelInfo(
            self.num_parameters,
            self.dtype,
            report.num_bytes,
            report.seconds,
            vocab_size=self.vocab_size,
            compute_path=f"{NATIVE} {self.native.name}{stored_as}, without torch",
        )

    def for_profile(self) -> BareModel:
        """Return a model whose passes take as much memory, of fewer layers."""
        return replace(self, native=self.native.shortened())

    def close(self) -> None:
        """Give the memory back; the model must not be used any more."""
        self.weights.close()


def load(settings: EngineSettings, device: Device, kernels: Kernels) -> BareModel:
    """Load a model of which `why_torch` knows no reason. Raises ModelInvalid, …Changed, InvalidSettings, …Memory."""
    files = check_model_files(settings.model_path, settings.load_format)
    config = read_model(settings, files)
    if isinstance(config, Unfit):  # it changed since, or somebody named the worker's class
        raise InvalidSettings(f"{files.path} needs an engine with torch: {config.reason}")
    dtype = ARRAY_DTYPES[resolve_dtype(settings.dtype, files.config)]
    plan = plan_weights(config, dtype, settings.quantization)
    weights = reserve(settings, device, plan)
    try:
        report = weights.load(settings.load_format)
        decoder = _decoder(config, weights, plan)
    except BaseException:
        weights.close()
        raise
    logger.info("%s: %s", files.path, report)
    stored = LayerSpec(config.num_key_value_heads, config.head_dim, config.head_dim, dtype, settings.kv_cache_dtype)
    layers, windows = (stored,) * config.num_hidden_layers, (config.sliding_window,) * config.num_hidden_layers
    return BareModel(
        native=NativeDecoder(decoder, kernels),
        cache_spec=CacheSpec.of(layers, settings.block_size, windows),
        weights=weights,
        load_report=report,
        max_model_len=settings.max_model_len or config.max_position_embeddings,
        vocab_size=config.vocab_size,
        dtype=name_of(dtype),
        num_parameters=plan.num_parameters,
        quantization=settings.quantization,
    )


def reserve(settings: EngineSettings, device: Device, plan: WeightPlan) -> WeightStore:
    """Return where the settings' model will lie. Raises InsufficientMemory."""

    def list_tensors() -> Tensors:
        return check_model_files(settings.model_path, settings.load_format).tensors

    contents = Contents(plan.layout, plan.source(list_tensors), {})
    try:
        return WeightStore(device, contents, keeps_host_copy=False)
    except OSError as error:
        size = plan.layout.num_bytes
        raise InsufficientMemory(f"{settings.model}: no address range of {size} bytes: {error}") from error


def _decoder(config: BareConfig, weights: WeightStore, plan: WeightPlan) -> Decoder:
    linear = plan.maps_in(weights)
    lookup = linear(EMBEDDING)
    embedding = Embedding(lookup.weight, plan.dtype, config.hidden_size, lookup.scale, lookup.format)
    return Decoder(
        embedding=embedding,
        rotary=Rotary(frequencies(config.rope, config.head_dim), 1.0),
        layers=tuple(make_layer(config, weights, linear, layer) for layer in range(config.num_hidden_layers)),
        norm=RMSNorm(weights.tensor(f"{NORM}.weight"), config.rms_norm_eps),
        head=lookup if config.tie_word_embeddings else linear(HEAD),
    )


def make_layer(
    config: BareConfig,
    weights: WeightStore,
    linear: Maps,
    layer: int,
    begins: str | None = None,
    *,
    has_norm: bool = True,
) -> Layer:
    """Return a layer of weights whose names begin so; None = as the model's own. `has_norm` = before it attends."""
    begins = prefix(layer) if begins is None else begins

    def norm(name: str) -> RMSNorm:
        return RMSNorm(weights.tensor(f"{begins}{name}.weight"), config.rms_norm_eps)

    def maps(*names: str) -> Linear:
        return linear(*(begins + name for name in names))

    call = AttentionCall(layer_idx=layer, scale=config.head_dim**-0.5, window=config.sliding_window)
    head_norms = (norm("self_attn.q_norm"), norm("self_attn.k_norm")) if config.has_head_norms else None
    return Layer(
        Attention(
            call=call,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            norm=norm("input_layernorm") if has_norm else None,
            qkv=maps(*QKV),
            head_norms=head_norms,
            output=maps("self_attn.o_proj"),
        ),
        GatedMLP(norm("post_attention_layernorm"), maps(*GATE_UP), maps("mlp.down_proj")),
    )
