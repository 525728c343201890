"""Which tensors of GGUF files a module's are made from; everything is accounted for, or refused by name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.files.gguf.facts import Facts
from dormouse_worker.files.gguf.header import GgufFile
from dormouse_worker.files.gguf.names import Origin, origins_of
from dormouse_worker.model.quantized.convert import keep
from dormouse_worker.model.quantized.formats import KEPT
from dormouse_worker.model.quantized.gguf_source import GgufSource, GgufTensor
from dormouse_worker.model.quantized.grouped import CHUNK, Chunks
from dormouse_worker.model.quantized.stored_plan import whole_joins
from dormouse_worker.model.weights.kind import GENERATES, ModelKind
from dormouse_worker.model.weights.reader import CheckpointSource
from dormouse_worker.model.weights.report import wrong_shape
from dormouse_worker.model.weights.skeleton import Skeleton, find_origins, iter_tensors

logger = logging.getLogger(__name__)

KEEPS = MappingProxyType(  # the types whose numbers our kernels compute with as they are
    {
        "Q4_0": Chunks.OF_FOUR,
        "Q4_1": Chunks.WITH_LOWS,
        "Q4_K": Chunks.WITH_LOWS,
        "Q5_0": Chunks.BYTES_OF_FOUR,
        "Q5_1": Chunks.BYTES_WITH_LOWS,
        "Q5_K": Chunks.BYTES_WITH_LOWS,
        "Q6_K": Chunks.BYTES_OF_EIGHT,
        "Q8_0": Chunks.BYTES_OF_FOUR,
    }
)


def plan_gguf(
    skeleton: Skeleton,
    gguf: GgufFile,
    checkpoint: Callable[[Mapping[str, str]], CheckpointSource],
    joined: Sequence[Sequence[str]] = (),
    torn: frozenset[str] = frozenset(),
) -> GgufSource:
    """Return a source of the skeleton's tensors; `checkpoint` reads tensors of the files by slots' names.

    A tensor becomes plain, unless it can keep its numbers in a model of which weights are `joined` (see
    `joined_parameters`), unless it is `torn` between ranks; none are joined = nothing is kept. Raises ModelInvalid for
    what is missing, has another shape, or has no place in the model.
    """
    found, places = origins_of(Facts(gguf)), find_origins(skeleton)
    if places is None:
        raise ModelInvalid(
            f"{gguf.file}: {type(skeleton.module).__name__} needs weights that transformers converts, which are not "
            "read of GGUF; use the model's safetensors"
        )
    tensors = {
        name: GgufTensor(_origin(gguf, found, places[name], tensor))
        for name, tensor in iter_tensors(skeleton.module)
        if name in places
    }
    if strangers := found.keys() - set(places.values()):
        raise _stranger(found[min(strangers)], len(strangers), type(skeleton.module).__name__)
    own = {name: tensor for name, tensor in tensors.items() if places[name] == name}  # the others share another's
    kept = _kept(skeleton.module, own, joined, torn) if joined else {}
    keep(skeleton.module, {name: KEPT[chunks] for name, chunks in kept.items()})
    logger.info("%s: %s; %d weights keep their numbers, others are made plain", gguf.file, _types(gguf), len(kept))
    names = {tensor.origin.name: tensor.origin.name for tensor in tensors.values()}
    return GgufSource(
        checkpoint(names), {name: replace(tensor, kept=kept.get(name)) for name, tensor in tensors.items()}
    )


def require_generation(task: str, kind: ModelKind) -> None:
    """Raise InvalidSettings for a task that GGUF files are not read for."""
    if kind is not GENERATES:
        raise InvalidSettings(
            f"task is {task}, and GGUF files are read for the task generate alone; use the model's safetensors"
        )


def _stranger(origin: Origin, count: int, title: str) -> ModelInvalid:
    stored = origin.stored
    return ModelInvalid(
        f"{stored.file}: tensor {origin.name}, {stored.dtype} {list(stored.shape)}, has no place in a {title}, and "
        f"{count - 1} more have none: without them it would say something else; use the model's safetensors"
    )


def _origin(gguf: GgufFile, found: Mapping[str, Origin], name: str, tensor: torch.Tensor) -> Origin:
    origin, shape = found.get(name), tuple(tensor.shape)
    if origin is None:
        raise ModelInvalid(f"{gguf.file}: has no tensor for {name}, which the model needs; convert the model again")
    if origin.stored.shape != shape:
        raise wrong_shape(origin.name, origin.stored.file, origin.stored.shape, shape)
    if len(shape) > 2 or not tensor.is_floating_point():
        raise ModelInvalid(f"{gguf.file}: {name} is {list(shape)} of {tensor.dtype}, which is not read of GGUF")
    if origin.num_heads and (shape[0] % origin.num_heads or shape[0] // origin.num_heads % 2):
        raise ModelInvalid(
            f"{gguf.file}: tensor {origin.name} has {shape[0]} rows for {origin.num_heads} heads; copy the file again"
        )
    return origin


def _kept(
    module: Any, tensors: Mapping[str, GgufTensor], joined: Sequence[Sequence[str]], torn: frozenset[str]
) -> Mapping[str, Chunks]:
    """Return how the maps lie that are kept: all of those that are joined, or none."""
    whole = {name: one for name, one in tensors.items() if one.columns % CHUNK == 0 and name not in torn}
    return whole_joins(module, {name: KEEPS.get(one.origin.stored.dtype) for name, one in whole.items()}, joined)


def _types(gguf: GgufFile) -> str:
    """Return how many tensors there are of each type."""
    counts = Counter(tensor.dtype for tensor in gguf.tensors.values())
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
