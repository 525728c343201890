"""Puts quantized modules in the place of a model's linear maps, before the weights have memory.

All linear maps of the layers and the head are quantized. An embedding that shares its weight with the head shares its
numbers; one of its own stays as it is: nothing is multiplied with it, a token reads one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.quantized.formats import FORMATS
from dormouse_worker.model.quantized.modules import QuantizedEmbedding, QuantizedLinear
from dormouse_worker.model.weights.layout import Slot

MOST_INPUTS = 1 << 16  # whose products of 8 bits a sum of 32 bits holds


def convert(module: Any, method: str) -> Mapping[str, Slot]:
    """Replace what is to be quantized; return the plain tensor that was in each place, by the name of the weight.

    Raises InvalidSettings, naming the part, for a model with matrices that are neither linear maps nor embeddings.
    """
    for name, why in _misfits(module):
        raise InvalidSettings(f"quantization is {method}, which {name} {why}; set quantization to none")
    made: dict[int, QuantizedLinear] = {}  # by the plain weight
    plain: dict[str, Slot] = {}
    kept = []  # plain weights, which give the identities
    for path, part in list(module.named_modules()):
        if type(part) is not nn.Linear or _is_tied_oddly(module, part):
            continue
        kept.append(part.weight)
        plain[f"{path}.weight"] = Slot(f"{path}.weight", 0, tuple(part.weight.shape), part.weight.dtype)
        quantized = QuantizedLinear(part, FORMATS[method])
        first = made.setdefault(id(part.weight), quantized)
        quantized.weight, quantized.weight_scale = first.weight, first.weight_scale
        module.set_submodule(path, quantized)
    for path, part in list(module.named_modules()):
        if type(part) is nn.Embedding and id(part.weight) in made:
            plain[f"{path}.weight"] = Slot(f"{path}.weight", 0, tuple(part.weight.shape), part.weight.dtype)
            module.set_submodule(path, QuantizedEmbedding(part, made[id(part.weight)]))
    return plain


def _misfits(module: Any) -> Iterator[tuple[str, str]]:
    for path, part in module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            if parameter.dim() > 1 and not isinstance(part, nn.Linear | nn.Embedding):
                yield f"{path}.{name}".lstrip("."), f"of a {type(part).__name__} cannot have"
        if isinstance(part, nn.Linear) and type(part) is not nn.Linear:
            yield path, f"cannot have: it is a {type(part).__name__}"
        if isinstance(part, nn.Linear) and part.in_features > MOST_INPUTS:
            yield path, f"cannot have: it has {part.in_features} inputs, and {MOST_INPUTS} are the most"


def _is_tied_oddly(module: Any, part: nn.Linear) -> bool:
    """Return whether a map shares its weight with an embedding that does more than look up, such as scale."""
    return any(
        other.weight is part.weight and type(other) is not nn.Embedding
        for other in module.modules()
        if isinstance(other, nn.Embedding)
    )
