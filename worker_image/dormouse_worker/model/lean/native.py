"""A Decoder's pass in one call of our kernels for processors. The decoder itself stays the reference.

It computes with the decoder's tensors where they lie, and only passes whose attention the native backend planned: any
other, such as one that finds out what layers store, is the decoder's.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import AbstractContextManager, nullcontext
from ctypes import Array, c_int64
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.native_plan import TYPES, NativePlan, describe_attention
from dormouse_worker.model.attention.paged import PagedContext
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.lean.exchange import Exchange
from dormouse_worker.model.lean.parts import Decoder, Embedding, Layer, Linear, RMSNorm
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.model.parallel.shards import Vocabulary
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.model.tensors import Dtype, Tensor, name_of, pointer_to
from dormouse_worker.model.vision.placed import Seen
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels

if TYPE_CHECKING:
    from dormouse_worker.model.adapters.store import AdapterStore

FORMATS = MappingProxyType(  # by the names that `quantized.formats` gives them
    {
        "int8": abi.INT8,
        "int4": abi.INT4,
        "w4a16/128": abi.W4_1,
        "w4a16/32": abi.W4_4,
        "w4a16/32 with lows": abi.W4_LOW,
        "w8a16/32": abi.W8_4,
        "w8a16/16": abi.W8_8,
        "w8a16/32 with lows": abi.W8_LOW,
    }
)
MAX_STARTS = 4  # of `abi.Lora`


@dataclass(frozen=True, slots=True)
class _Bound:
    """The model as the kernels read it, over one cache; and the batch, made once and filled for each pass."""

    cache: weakref.ref[KVCache]
    model: abi.Model  # of a rank that shares its stage it calls `exchange`
    layers: Array[abi.Layer]  # what `model` points to
    exchange: Exchange
    batch: abi.Batch
    groups: Array[abi.Group]  # what `batch` points to


class NativeDecoder:
    """Computes what `decoder.forward` does. Sums, residual stream and logits are float32 for any weights."""

    def __init__(self, decoder: Decoder, kernels: Kernels, adapters: AdapterStore | None = None) -> None:
        """`adapters` are those whose slots the decoder's maps know."""
        self._decoder = decoder
        self._adapters = adapters
        self._kernels = kernels
        self._bound: _Bound | None = None

    def __repr__(self) -> str:
        return f"NativeDecoder({len(self._decoder.layers)} layers, {self._kernels!r})"

    @property
    def name(self) -> str:
        """Return which variant computes."""
        return self._kernels.name

    @property
    def decoder(self) -> Decoder:
        """Return what it computes with."""
        return self._decoder

    def shortened(self) -> NativeDecoder:
        """Return one with a layer of each kind: a pass of it takes as much memory as the whole, and little time.

        The workspace serves one layer after the other, and what a layer takes besides depends on its window alone. The
        last layer is a kind of its own: but for keys and values it computes no more than the rows that are wanted.
        """
        *others, last = self._decoder.layers
        kinds = {layer.attention.call.window: layer for layer in others}
        return NativeDecoder(replace(self._decoder, layers=(*kinds.values(), last)), self._kernels, self._adapters)

    def from_embedded(self) -> NativeDecoder:
        """Return one of the same weights that begins with rows instead of tokens."""
        return NativeDecoder(replace(self._decoder, embedding=None), self._kernels, self._adapters)

    def forward(
        self,
        packed: PackedInput,
        rows: Ints,
        context: PagedContext,
        group: Communicator = ALONE,
        seen: Seen | None = None,
    ) -> Floats:
        """Return logits, [len(rows), V], of a packed batch [T] within a context that fits; alone, no torch on the way.

        Rows are in their order, none twice: the last layer computes nothing but keys and values of others. `seen` is
        what one begins with that has no embedding.

        They hold until the next pass with the context's scratch, as do the states that it keeps. Where another stage
        computes them, the hidden states are sent to the next one, in float32, and it is [len(rows), 0].

        Raises RankLost.
        """
        bound, scratch = self._bind(context.cache), context.scratch
        batch, size = bound.batch, (len(packed.token_ids), len(rows))
        if size != scratch.pass_size:
            scratch.resize(*size, bound.model.num_logits, self._kernels.workspace_bytes(bound.model, size[0]))
        for plan, layers in zip(context.plans, bound.groups, strict=True):
            assert isinstance(plan, NativePlan), "it fits"
            plan.fill_group(layers)
            plan.fill_batch(batch)
        batch.num_rows = len(rows)
        batch.positions = address_of(packed.positions)
        batch.token_ids = address_of(packed.token_ids)
        batch.rows = address_of(rows)
        batch.rope = None if packed.rope is None else address_of(packed.rope)
        hidden = self._receive(size[0], group) if seen is None else _as_floats(seen.embedded)  # is overwritten
        deep = None if seen is None or seen.deep is None else seen.deep.float()
        batch.deep, batch.num_deep = (None, 0) if deep is None else (pointer_to(deep), len(deep))
        batch.hidden = None if hidden is None else pointer_to(hidden)
        batch.logits = address_of(scratch.logits)
        batch.states = address_of(scratch.states) if scratch.state_size else None
        batch.states_of_all = scratch.keeps_all_states
        batch.depths, batch.num_depths = address_of(scratch.depths), len(scratch.depths)
        batch.beside = None if seen is None or seen.beside is None else address_of(seen.beside)
        batch.lora_slots = None if packed.lora_slots is None else address_of(packed.lora_slots)
        batch.workspace = scratch.workspace_address
        with _recorded(), bound.exchange.between(group):
            self._kernels.forward(bound.model, batch)
        if self._decoder.head is None:
            assert hidden is not None, "another stage computes logits"
            group.send(hidden)
            return scratch.logits
        vocabulary = self._decoder.vocabulary
        return scratch.logits if vocabulary is None else _gather(scratch.logits, vocabulary, group)

    def _receive(self, num_tokens: int, group: Communicator) -> Tensor | None:
        """Return the stages' hidden states, [T, H], which the pass changes; None = there is one stage."""
        decoder = self._decoder
        if decoder.embedding is not None and decoder.head is not None:
            return None
        import torch

        hidden = torch.empty(num_tokens, len(decoder.layers[0].mlp.norm.weight))  # new: the last may be under way
        return hidden if decoder.embedding is not None else group.receive(hidden)

    def _bind(self, cache: KVCache) -> _Bound:
        """Return the model over this cache; weights and cache keep their addresses over every sleep."""
        if self._bound is None or self._bound.cache() is not cache:
            leads, dtype = _leads(self._decoder), computed_dtype(self._decoder)
            described = [_layer(layer, cache, dtype, leads=leads) for layer in self._decoder.layers]
            layers = (abi.Layer * len(described))(*described)
            groups, exchange = (abi.Group * len(cache.spec.groups))(), Exchange()
            model = _model(self._decoder, layers, exchange)
            _add_adapters(model, self._adapters)
            self._bound = _Bound(weakref.ref(cache), model, layers, exchange, abi.Batch(groups=groups), groups)
        return self._bound


def _recorded() -> AbstractContextManager[object]:
    """Name the pass in a trace, which shows torch's operations alone; it would take 10 µs where nobody traces."""
    torch: Any = sys.modules.get("torch")  # who has not imported it traces nothing
    is_traced = torch is not None and torch.autograd._profiler_enabled()  # noqa: SLF001  nobody else tells
    return torch.profiler.record_function("dormouse::forward") if is_traced else nullcontext()


def _as_floats(rows: Tensor) -> Tensor:
    """Return what a pass begins with in float32: an array is."""
    return rows if isinstance(rows, np.ndarray) else rows.float()


def computed_dtype(decoder: Decoder) -> Dtype:
    """Return what the model computes in, whatever its weights are."""
    return decoder.layers[0].mlp.norm.weight.dtype


def _gather(logits: Floats, vocabulary: Vocabulary, group: Communicator) -> Floats:
    """Return all ranks' logits side by side."""
    import torch

    from dormouse_worker.model.parallel.layers import gather_logits

    gathered: Floats = gather_logits(torch.from_numpy(logits), vocabulary, group).contiguous().numpy()
    return gathered


def _model(decoder: Decoder, layers: Array[abi.Layer], exchange: Exchange) -> abi.Model:
    mlp = decoder.layers[0].mlp
    vocabulary, embedding, head = decoder.vocabulary, decoder.embedding, decoder.head
    num_embedded = 0 if embedding is None else len(embedding.weight)
    return abi.Model(
        dtype=TYPES[name_of(computed_dtype(decoder))],
        num_layers=len(layers),
        hidden_size=len(mlp.norm.weight),
        intermediate_size=len(mlp.gate_up.weight) // 2,
        vocab_size=num_embedded if vocabulary is None else vocabulary.size,
        first_token=0 if vocabulary is None else vocabulary.start,
        num_embedded=num_embedded,
        num_logits=0 if head is None else len(head.weight),
        rank=0 if vocabulary is None else vocabulary.layout.tensor_rank,
        num_ranks=1 if vocabulary is None else vocabulary.layout.tensor,
        sum_up=abi.SumUp() if vocabulary is None else abi.SumUp(exchange.sum_up),
        embedding=describe_linear(None if embedding is None else _looked_up(embedding)),
        inv_freq=pointer_to(decoder.rotary.inv_freq),
        attention_factor=decoder.rotary.attention_factor,
        axes=None if decoder.rotary.axes is None else pointer_to(decoder.rotary.axes),
        norm=_norm(decoder.norm),
        head=describe_linear(head),
        layers=layers,
    )


def _leads(decoder: Decoder) -> bool:
    """Return whether this rank brings to sums what the ranks of its stage must not bring twice."""
    return decoder.vocabulary is None or decoder.vocabulary.layout.tensor_rank == 0


def _layer(layer: Layer, cache: KVCache, dtype: Dtype, *, leads: bool) -> abi.Layer:
    attention, mlp = layer.attention, layer.mlp
    query_norm, key_norm = attention.head_norms or (None, None)
    pool = cache.layer(attention.call.layer_idx)
    return abi.Layer(
        attention=describe_attention(pool, attention.num_heads, attention.call, dtype=dtype),
        group=cache.group_of(attention.call.layer_idx),
        input_norm=_norm(attention.norm),
        query_norm=_norm(query_norm),
        key_norm=_norm(key_norm),
        mlp_norm=_norm(mlp.norm),
        beside_norm=_norm(attention.beside_norm),
        qkv=describe_linear(attention.qkv),
        output=describe_linear(attention.output, has_bias=leads),
        gate_up=describe_linear(mlp.gate_up),
        down=describe_linear(mlp.down, has_bias=leads),
        qkv_lora=_lora(attention.qkv),
        output_lora=_lora(attention.output),
        gate_up_lora=_lora(mlp.gate_up),
        down_lora=_lora(mlp.down),
    )


def describe_linear(linear: Linear | None, *, has_bias: bool = True) -> abi.Linear:
    """Return a map as the kernels read it; None = there is none."""
    if linear is None:
        return abi.Linear()
    bias = linear.bias if has_bias else None
    return abi.Linear(
        weight=pointer_to(linear.weight),
        bias=None if bias is None else pointer_to(bias),
        format=abi.PLAIN if linear.format is None else FORMATS[linear.format.name],
        scales=None if linear.scale is None else pointer_to(linear.scale),
    )


def _looked_up(embedding: Embedding) -> Linear:
    return Linear(embedding.weight, None, scale=embedding.scale, format=embedding.format)


def _lora(linear: Linear) -> abi.Lora:
    if (lora := linear.lora) is None:
        return abi.Lora()
    starts = (c_int64 * MAX_STARTS)(*lora.starts)
    return abi.Lora(pointer_to(lora.a[0]), pointer_to(lora.b[0]), starts, len(lora.starts) - 1)


def _add_adapters(model: abi.Model, adapters: AdapterStore | None) -> None:
    if adapters is not None:
        model.lora_slot_bytes, model.lora_rank = adapters.layout.slot_bytes, adapters.layout.rank
        model.lora_ranks = address_of(adapters.ranks)


def _norm(norm: RMSNorm | None) -> abi.Norm:
    return abi.Norm(None, 0.0) if norm is None else abi.Norm(pointer_to(norm.weight), norm.eps)
