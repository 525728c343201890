"""Which tensors of a quantized checkpoint a module's are made from; everything is accounted for, or refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.layout import Layout
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.parallel.cut import num_input_ranks
from dormouse_worker.model.quantized.blocks import SCALE
from dormouse_worker.model.quantized.convert import keep
from dormouse_worker.model.quantized.formats import KEPT, Format
from dormouse_worker.model.quantized.grouped import CHUNK, Chunks
from dormouse_worker.model.quantized.stored import WEIGHT, StoredMap, StoredSource, find_map, names_beside
from dormouse_worker.model.quantized.stored_kinds import ByGroups, StoredKind
from dormouse_worker.model.weights.reader import CheckpointSource, can_convert
from dormouse_worker.model.weights.report import wrong_shape
from dormouse_worker.model.weights.skeleton import Skeleton, find_origins, iter_tensors
from dormouse_worker.model.weights.strangers import Places

logger = logging.getLogger(__name__)

Stored = Mapping[str, StoredTensor]


def plan_stored(
    skeleton: Skeleton,
    kind: StoredKind,
    stored: Stored,
    checkpoint: Callable[[Mapping[str, str]], CheckpointSource],
    joined: Sequence[Sequence[str]] = (),
    torn: frozenset[str] = frozenset(),
) -> StoredSource:
    """Return a source of the skeleton's tensors; `checkpoint` reads tensors of the files by slots' names.

    A map lies plain in the files, or in the parts of its kind. It becomes plain, unless it can keep its 4 bits in a
    model of which weights are `joined` (see `joined_parameters`), unless it is `torn` between ranks; none are joined =
    nothing is kept, and modules stay as they are.
    Raises ModelInvalid for what is missing, has another shape or type, or has no place in the model.
    """
    origins = find_origins(skeleton)
    if origins is None:
        raise ModelInvalid(
            f"config.json: quantization_config is {kind.name}, and {type(skeleton.module).__name__} needs weights that "
            "transformers converts, which are read plain alone; use the model's plain weights"
        )
    names: dict[str, str] = {}
    maps: dict[str, StoredMap] = {}
    beside: set[str] = set()
    for name, tensor in iter_tensors(skeleton.module):
        if name not in origins:
            continue
        if is_plain(origins[name], tensor, stored):
            names[name] = origins[name]
            continue
        maps[name] = _map_of(kind, origins[name], tensor, stored)
        names.update((slot.name, slot.name) for slot in maps[name].parts.values())
        beside |= names_beside(kind, origins[name])
    if not maps:
        raise ModelInvalid(
            f"config.json: quantization_config is {kind.name}, and all weights of the files are plain; copy "
            "config.json again"
        )
    Places(skeleton.module).check_strangers(stored.keys() - set(names.values()) - beside, stored)
    kept = _kept(skeleton.module, kind, maps, joined, torn) if joined and isinstance(kind, ByGroups) else {}
    logger.info("%s: %d weights keep 4 bits, %d are made plain", kind.name, len(kept), len(maps) - len(kept))
    keep(skeleton.module, {name: KEPT[chunks] for name, chunks in kept.items()})
    return StoredSource(
        checkpoint(names), kind, {name: replace(found, kept=kept.get(name)) for name, found in maps.items()}
    )


def keep_saved(module: Any, saved: Stored, layout: Layout) -> None:
    """Put the maps in place that a sharded state has in their own 4 bits, as the length of a row says."""
    paths = [path for path, part in module.named_modules() if type(part) is nn.Linear and f"{path}.{SCALE}" in saved]
    ranks = num_input_ranks(module, layout)
    columns = {path: module.get_submodule(path).in_features // ranks.get(f"{path}{WEIGHT}", 1) for path in paths}
    formats = {path: _saved_format(columns[path], saved.get(f"{path}{WEIGHT}")) for path in paths}
    keep(module, {f"{path}{WEIGHT}": found for path, found in formats.items() if found is not None})


def _saved_format(columns: int, saved: StoredTensor | None) -> Format | None:
    """Return the format in which a row of so many inputs takes the bytes that it has, None if there is none."""
    if saved is None or columns % CHUNK:
        return None
    return next((found for found in KEPT.values() if found.row_bytes(columns) == saved.shape[-1]), None)


def _kept(
    module: Any,
    kind: ByGroups,
    maps: Mapping[str, StoredMap],
    joined: Sequence[Sequence[str]],
    torn: frozenset[str],
) -> Mapping[str, Chunks]:
    """Return how the maps lie that are kept: all of those that are joined, or none."""
    chunks = {name: kind.chunks_of(found.columns) for name, found in maps.items() if name not in torn}
    return whole_joins(module, chunks, joined)


def whole_joins(
    module: Any, chunks: Mapping[str, Chunks | None], joined: Sequence[Sequence[str]]
) -> Mapping[str, Chunks]:
    """Return how plain maps lie that can be kept, without those that are joined and do not all lie so."""
    fitting = {
        name: found
        for name, found in chunks.items()
        if found is not None and type(module.get_submodule(name.removesuffix(WEIGHT))) is nn.Linear
    }
    torn = {name for group in joined if not _lie_alike([fitting.get(name) for name in group]) for name in group}
    return {name: found for name, found in fitting.items() if name not in torn}


def _lie_alike(found: Sequence[Chunks | None]) -> bool:
    return None not in found and len(set(found)) == 1


def is_plain(name: str, tensor: torch.Tensor, stored: Stored) -> bool:
    """Return whether a plain weight lies in the files under this name. Raises ModelInvalid for another shape."""
    found = stored.get(name)
    if found is None or not can_convert(found.dtype, tensor.dtype):
        return False
    if found.shape != tuple(tensor.shape):
        raise wrong_shape(name, found.file, found.shape, tuple(tensor.shape))
    return True


def _map_of(kind: StoredKind, name: str, tensor: torch.Tensor, stored: Stored) -> StoredMap:
    shape = tuple(tensor.shape)
    if len(shape) != 2 or not name.endswith(WEIGHT):
        raise not_there(name)
    return find_map(kind, name, shape, stored)


def not_there(name: str) -> ModelInvalid:
    """Return what is said of a weight that the files must have plain."""
    return ModelInvalid(f"{name} is not in the files, or of a type that is no float; copy the files again")
