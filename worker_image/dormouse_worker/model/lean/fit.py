"""Whether our kernels compute a decoder, and who does so then."""

from __future__ import annotations

from collections.abc import Iterator

from dormouse_worker.model.adapters.store import AdapterStore
from dormouse_worker.model.attention.native_plan import TYPES
from dormouse_worker.model.kv_cache import LayerSpec
from dormouse_worker.model.lean.arriving import find_tensors
from dormouse_worker.model.lean.decoder import LeanDecoder
from dormouse_worker.model.lean.native import NativeDecoder, computed_dtype
from dormouse_worker.model.lean.parts import Embedding, Linear
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.tensors import name_of
from dormouse_worker.native.abi import MAX_HEAD_SIZE
from dormouse_worker.native.library import Kernels, Missing


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
    dtypes = {name_of(tensor.dtype) for tensor in tensors if id(tensor) not in numbers}
    if len(dtypes) > 1 or name_of(computed_dtype(decoder)) not in TYPES:
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
