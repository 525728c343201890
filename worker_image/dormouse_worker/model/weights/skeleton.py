"""Modules before their weights: which tensors they have, built without memory for any of them.

transformers builds a module on the meta device and then puts a checkpoint's tensors into it, converted and renamed as
the architecture demands. We give it markers in their place: tensors of one element, stretched to the right shape. What
stands where in the end tells whether the files can be read straight into place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dormouse_worker.model.slim_imports import replaced, without_compiler
from dormouse_worker.model.weights.kind import ModelKind
from dormouse_worker.model.weights.layout import PART


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A module whose parameters are markers and whose computed buffers are real."""

    module: Any
    markers: Mapping[str, torch.Tensor]
    tied: frozenset[str]  # names that have no marker of their own


def build_skeleton(config: Any, dtype: torch.dtype, kind: ModelKind) -> Skeleton:
    """Return a module that took no memory to speak of, on the CPU. Where transformers converts, no marker stands."""
    made_with: dict[str, Any] = {"dtype": dtype, "attn_implementation": kind.register(), **kind.options}
    with torch.device("meta"), _no_draws(), without_compiler():
        blank = kind.auto_class.from_config(config, **made_with)
    tied = frozenset(blank.all_tied_weights_keys)
    markers = {
        name: torch.ones((), dtype=tensor.dtype).expand(tensor.shape)
        for name, tensor in blank.state_dict().items()
        if name not in tied
    }
    with _no_draws(), without_compiler():
        module = type(blank).from_pretrained(None, config=blank.config, state_dict=dict(markers), **made_with)
    return Skeleton(module, markers, tied)


def _no_draws() -> AbstractContextManager[None]:
    """Let modules draw nothing into weights without memory: torch computes that in Python, and imports its compiler."""
    draw = nn.init.normal_

    def normal_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if tensor.is_meta else draw(tensor, *args, **kwargs)

    return replaced(nn.init, "normal_", normal_)


def find_origins(skeleton: Skeleton) -> Mapping[str, str] | None:
    """Return for each tensor that a checkpoint holds the name of the marker in its place; None if one is converted.

    Another type is no conversion: some architectures keep a few tensors in float32. A marker that is no longer one was
    written to: some architectures change what they read, such as the row of a padding token.
    """
    if any(marker.numel() and marker[(0,) * marker.dim()] != 1 for marker in skeleton.markers.values()):
        return None
    names = {marker.data_ptr(): name for name, marker in skeleton.markers.items()}
    stored = _stored_names(skeleton.module)
    origins: dict[str, str] = {}
    for name, tensor in iter_tensors(skeleton.module):
        if name not in stored:
            continue
        origin = names.get(tensor.data_ptr())
        if origin is None and name in skeleton.markers and tensor.dtype != skeleton.markers[name].dtype:
            origin = name
        if origin is None or (origin != name and name not in skeleton.tied):
            return None
        origins[name] = origin
    return origins


def computed_buffers(module: Any) -> Mapping[str, torch.Tensor]:
    """Return what no checkpoint holds."""
    stored = _stored_names(module)
    tensors = iter_tensors(module)
    return {name: tensor.detach() for name, tensor in tensors if name.partition(PART)[0] not in stored}


def iter_tensors(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all plain tensors of parameters and buffers in the order of execution, tied ones under each name.

    Those of a tensor that is made of others, as quantized ones are, come under `name/part`.
    """
    for name, tensor in module.named_parameters(remove_duplicate=False):
        yield from _plain(name, tensor)
    for name, tensor in module.named_buffers(remove_duplicate=False):
        yield from _plain(name, tensor)


def _plain(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield name, tensor
        return
    for part in flatten()[0]:
        yield from _plain(f"{name}{PART}{part}", getattr(tensor, part))


def _stored_names(module: Any) -> frozenset[str]:
    return frozenset(module.state_dict())
