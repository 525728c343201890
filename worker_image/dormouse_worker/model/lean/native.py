"""A LeanDecoder's pass in one call of our kernels for processors. The decoder itself stays the reference.

It computes with the decoder's tensors where they lie, and only passes whose attention the native backend planned: any
other, such as one that finds out what layers store, is the decoder's.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from ctypes import Array, c_int64
from dataclasses import dataclass, replace

import torch

from dormouse_worker.model.adapters.store import AdapterStore
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.hook import PagedContext
from dormouse_worker.model.attention.native import MAX_HEAD_SIZE, TYPES, NativePlan, describe_attention
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.kv_cache import KVCache, LayerSpec
from dormouse_worker.model.lean.arriving import find_tensors
from dormouse_worker.model.lean.build import Unfit
from dormouse_worker.model.lean.decoder import Embedding, Layer, LeanDecoder, Linear, RMSNorm
from dormouse_worker.model.lean.exchange import Exchange
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.model.parallel.layers import gather_logits
from dormouse_worker.model.parallel.shards import Vocabulary
from dormouse_worker.model.quantized.formats import INT4, INT8, KEPT
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.model.vision.placed import Seen
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels, Missing

FORMATS = {INT8.name: abi.INT8, INT4.name: abi.INT4, KEPT[1].name: abi.W4_1, KEPT[4].name: abi.W4_4}
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

    def __init__(self, decoder: LeanDecoder, kernels: Kernels, adapters: AdapterStore | None = None) -> None:
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

        They hold until the next pass with the context's scratch. Where another stage computes them, the hidden states
        are sent to the next one, in float32, and it is [len(rows), 0]. Raises RankLost.
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
        hidden = self._receive(size[0], group) if seen is None else seen.embedded.float()  # is overwritten
        deep = None if seen is None or seen.deep is None else seen.deep.float()
        batch.deep, batch.num_deep = (None, 0) if deep is None else (deep.data_ptr(), len(deep))
        batch.hidden = None if hidden is None else hidden.data_ptr()
        batch.logits = address_of(scratch.logits)
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

    def _receive(self, num_tokens: int, group: Communicator) -> torch.Tensor | None:
        """Return the stages' hidden states, [T, H], which the pass changes; None = there is one stage."""
        decoder = self._decoder
        if decoder.embedding is not None and decoder.head is not None:
            return None
        hidden = torch.empty(num_tokens, len(decoder.layers[0].attention.norm.weight))  # new: the last may be under way
        return hidden if decoder.embedding is not None else group.receive(hidden)

    def _bind(self, cache: KVCache) -> _Bound:
        """Return the model over this cache; weights and cache keep their addresses over every sleep."""
        if self._bound is None or self._bound.cache() is not cache:
            leads = _leads(self._decoder)
            described = [_layer(layer, cache, leads=leads) for layer in self._decoder.layers]
            layers = (abi.Layer * len(described))(*described)
            groups, exchange = (abi.Group * len(cache.spec.groups))(), Exchange()
            model = _model(self._decoder, layers, exchange)
            _add_adapters(model, self._adapters)
            self._bound = _Bound(weakref.ref(cache), model, layers, exchange, abi.Batch(groups=groups), groups)
        return self._bound


def _recorded() -> AbstractContextManager[object]:
    """Name the pass in a trace, which shows torch's operations alone; it would take 10 µs where nobody traces."""
    is_traced = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]  # noqa: SLF001  nobody else tells
    return torch.profiler.record_function("dormouse::forward") if is_traced else nullcontext()


def build_native(
    decoder: LeanDecoder,
    layers: tuple[LayerSpec, ...],
    kernels: Kernels | Missing,
    adapters: AdapterStore | None = None,
) -> NativeDecoder | Unfit:
    """Return who computes the decoder's passes with our kernels, or why nobody does."""
    if isinstance(kernels, Missing):
        return Unfit(kernels.reason)
    reason = next(_misfits(decoder, layers), None)
    return NativeDecoder(decoder, kernels, adapters) if reason is None else Unfit(reason)


def _misfits(decoder: LeanDecoder, layers: tuple[LayerSpec, ...]) -> Iterator[str]:
    tensors = list(find_tensors((decoder.embedding, tuple(decoder.layers), decoder.norm, decoder.head)))
    numbers = {id(tensor) for part in _quantized(decoder) for tensor in (part.weight, part.scale)}
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors if id(tensor) not in numbers}
    if len(dtypes) > 1 or _dtype(decoder) not in TYPES:
        yield f"the weights are {' and '.join(sorted(dtypes))}, and the kernels read float32 or bfloat16"
    if any(tensor.device.type != "cpu" for tensor in tensors):
        yield "the model is not on the processor"
    if not all(tensor.is_contiguous() for tensor in tensors):
        yield "its weights do not lie densely"
    heads = {(layer.attention.num_heads, layer.attention.num_kv_heads) for layer in decoder.layers}
    sizes = {size for layer in layers for size in (layer.key_size, layer.value_size)}
    if len(heads) > 1 or len(sizes) > 1:
        yield "its layers have heads of different numbers or sizes"
    if max(sizes) > MAX_HEAD_SIZE or any(size % 2 for size in sizes):
        yield f"its heads have {max(sizes)} numbers, and the kernels take even sizes up to {MAX_HEAD_SIZE}"
    calls = [layer.attention.call for layer in decoder.layers]
    if any(call.soft_cap is not None or call.sinks is not None for call in calls):
        yield "its attention has soft caps or sinks"


def _quantized(decoder: LeanDecoder) -> Iterator[Linear | Embedding]:
    """Yield the parts whose weights are of fewer bits."""
    for part in (decoder.embedding, decoder.head, *(part for layer in decoder.layers for part in layer.maps)):
        if part is not None and part.scale is not None:
            yield part


def _dtype(decoder: LeanDecoder) -> torch.dtype:
    """Return what the model computes in, whatever its weights are."""
    return decoder.layers[0].attention.norm.weight.dtype


def _gather(logits: Floats, vocabulary: Vocabulary, group: Communicator) -> Floats:
    """Return all ranks' logits side by side."""
    gathered: Floats = gather_logits(torch.from_numpy(logits), vocabulary, group).contiguous().numpy()
    return gathered


def _model(decoder: LeanDecoder, layers: Array[abi.Layer], exchange: Exchange) -> abi.Model:
    mlp = decoder.layers[0].mlp
    vocabulary, embedding, head = decoder.vocabulary, decoder.embedding, decoder.head
    num_embedded = 0 if embedding is None else len(embedding.weight)
    return abi.Model(
        dtype=TYPES[_dtype(decoder)],
        num_layers=len(layers),
        hidden_size=len(mlp.norm.weight),
        intermediate_size=len(mlp.gate_up.weight) // 2,
        vocab_size=num_embedded if vocabulary is None else vocabulary.size,
        first_token=0 if vocabulary is None else vocabulary.start,
        num_embedded=num_embedded,
        num_logits=0 if head is None else len(head.weight),
        leads=_leads(decoder),
        sum_up=abi.SumUp() if vocabulary is None else abi.SumUp(exchange.sum_up),
        embedding=_linear(None if embedding is None else _looked_up(embedding)),
        inv_freq=decoder.rotary.inv_freq.data_ptr(),
        attention_factor=decoder.rotary.attention_factor,
        axes=None if decoder.rotary.axes is None else decoder.rotary.axes.data_ptr(),
        norm=_norm(decoder.norm),
        head=_linear(head),
        layers=layers,
    )


def _leads(decoder: LeanDecoder) -> bool:
    """Return whether this rank brings to sums what the ranks of its stage must not bring twice."""
    return decoder.vocabulary is None or decoder.vocabulary.layout.tensor_rank == 0


def _layer(layer: Layer, cache: KVCache, *, leads: bool) -> abi.Layer:
    attention, mlp = layer.attention, layer.mlp
    query_norm, key_norm = attention.head_norms or (None, None)
    pool = cache.layer(attention.call.layer_idx)
    return abi.Layer(
        attention=describe_attention(pool, attention.num_heads, attention.call),
        group=cache.group_of(attention.call.layer_idx),
        input_norm=_norm(attention.norm),
        query_norm=_norm(query_norm),
        key_norm=_norm(key_norm),
        mlp_norm=_norm(mlp.norm),
        qkv=_linear(attention.qkv),
        output=_linear(attention.output, has_bias=leads),
        gate_up=_linear(mlp.gate_up),
        down=_linear(mlp.down, has_bias=leads),
        qkv_lora=_lora(attention.qkv),
        output_lora=_lora(attention.output),
        gate_up_lora=_lora(mlp.gate_up),
        down_lora=_lora(mlp.down),
    )


def _linear(linear: Linear | None, *, has_bias: bool = True) -> abi.Linear:
    if linear is None:
        return abi.Linear()
    bias = linear.bias if has_bias else None
    return abi.Linear(
        weight=linear.weight.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        format=abi.PLAIN if linear.format is None else FORMATS[linear.format.name],
        scales=None if linear.scale is None else linear.scale.data_ptr(),
    )


def _looked_up(embedding: Embedding) -> Linear:
    return Linear(embedding.weight, None, scale=embedding.scale, format=embedding.format)


def _lora(linear: Linear) -> abi.Lora:
    if (lora := linear.lora) is None:
        return abi.Lora()
    starts = (c_int64 * MAX_STARTS)(*lora.starts)
    return abi.Lora(lora.a[0].data_ptr(), lora.b[0].data_ptr(), starts, len(lora.starts) - 1)


def _add_adapters(model: abi.Model, adapters: AdapterStore | None) -> None:
    if adapters is not None:
        model.lora_slot_bytes, model.lora_rank = adapters.layout.slot_bytes, adapters.layout.rank
        model.lora_ranks = address_of(adapters.ranks)


def _norm(norm: RMSNorm | None) -> abi.Norm:
    return abi.Norm(None, 0.0) if norm is None else abi.Norm(norm.weight.data_ptr(), norm.eps)
