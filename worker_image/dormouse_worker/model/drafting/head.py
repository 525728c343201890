"""An EAGLE head beside its model: one layer that reads the model's last states, and guesses what comes behind.

A state is what the model multiplies with its output matrix. Of the state at a token and the vector of the token after
it the head's layer makes a guess of the next state, and the model's own output matrix a token of that. Its keys and
values lie behind the model's layers in the same blocks, at the place of the state.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from dormouse_worker.common.errors import InvalidSettings, ModelNotFound
from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.files.draft_files import check_vocabulary, named
from dormouse_worker.files.eagle_files import LAYER, as_model_config, check_numbers, check_tensors
from dormouse_worker.files.model_files import ModelFiles, check_model_files
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.native_plan import TYPES
from dormouse_worker.model.bare.choose import STORED
from dormouse_worker.model.bare.config import BareConfig, read_config
from dormouse_worker.model.bare.loader import BareModel, make_layer, reserve
from dormouse_worker.model.bare.tensors import layer_shapes
from dormouse_worker.model.bare.weight_plan import WeightPlan, plan_plain
from dormouse_worker.model.bits_rules import is_rounded
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.kv_cache import CacheSpec, LayerSpec
from dormouse_worker.model.lean.native import NativeDecoder, describe_linear
from dormouse_worker.model.lean.parts import Decoder, Embedding, Linear, Rotary
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.rotary import frequencies
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.model.tensors import ARRAY_DTYPES, floats_of
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native.library import Kernels

logger = logging.getLogger(__name__)

FC, FC_BIAS = "fc.weight", "fc.bias"
NORM_BEFORE = "input_layernorm.weight"  # which its layer has not


@dataclass(frozen=True, slots=True)
class Head:
    """A head over its model's embedding and output matrix."""

    native: NativeDecoder  # its layer, and the model's output matrix
    first: Linear  # [H, 2 H], what its layer begins with
    embedding: Embedding  # the model's
    weights: WeightStore  # owns the memory of its own tensors
    dtype: str
    kernels: Kernels

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of its own tensors."""
        return sum(slot.num_bytes for slot in self.weights.layout.slots)

    @property
    def state_size(self) -> int:
        """Return H, how many numbers a state has."""
        return self.embedding.size

    def begin(self, token_ids: Ints, states: Floats) -> Floats:
        """Return what its layer begins with, [T, H], of tokens [T] and the states before them, [T, H]."""
        vectors = floats_of(self.embedding.weight[token_ids])
        rows, out = np.concatenate([vectors, states], axis=1), np.empty_like(states)
        self.kernels.multiply(
            TYPES[self.dtype],
            address_of(rows),
            describe_linear(self.first),
            address_of(out),
            num_rows=len(rows),
            columns=rows.shape[1],
            num_outputs=out.shape[1],
        )
        return out


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
        config, plan = _read(files, target)
        weights = reserve(own, device, plan)
        try:
            report = weights.load(own.load_format)
            head = _make(config, target, weights, plan, kernels)
        except BaseException:
            weights.close()
            raise
    logger.info("%s: %s", files.path, report)
    stored = LayerSpec(
        config.num_key_value_heads, config.head_dim, config.head_dim, ARRAY_DTYPES[target.dtype], is_rounded(settings)
    )
    spec = target.cache_spec.beside(CacheSpec.of((stored,), settings.block_size))
    return replace(target, cache_spec=spec), head


def _read(files: ModelFiles, target: BareModel) -> tuple[BareConfig, WeightPlan]:
    """Return a head's sizes, and where its tensors go."""
    embedding = target.native.decoder.embedding
    assert embedding is not None, "the whole model is here"
    said = as_model_config(files.config)
    check_numbers(said, {"hidden_size": embedding.size, "vocab_size": target.vocab_size, "num_hidden_layers": 1})
    config = read_config(said)
    if isinstance(config, Unfit):
        raise InvalidSettings(f"its layer is not one that is computed here: {config.reason}")
    shapes: dict[str, tuple[int, ...]] = {FC: (config.hidden_size, 2 * config.hidden_size)}
    if FC_BIAS in files.tensors:
        shapes[FC_BIAS] = (config.hidden_size,)
    shapes |= {LAYER + name: shape for name, shape in layer_shapes(config).items() if name != NORM_BEFORE}
    check_tensors(files.tensors, shapes, STORED[target.dtype])
    return config, plan_plain(shapes, ARRAY_DTYPES[target.dtype], (LAYER,))


def _make(config: BareConfig, target: BareModel, weights: WeightStore, plan: WeightPlan, kernels: Kernels) -> Head:
    linear, model = plan.maps_in(weights), target.native.decoder
    assert model.embedding is not None, "the whole model is here"
    layers = (make_layer(config, weights, linear, 0, LAYER, has_norm=False),)
    rotary = Rotary(frequencies(config.rope, config.head_dim), 1.0)
    decoder = Decoder(embedding=None, rotary=rotary, layers=layers, norm=None, head=model.head)
    first = Linear(weights.tensor(FC), weights.tensor(FC_BIAS) if FC_BIAS in plan.shapes else None)
    return Head(NativeDecoder(decoder, kernels), first, model.embedding, weights, target.dtype, kernels)
