"""Puts quantized modules in the place of a model's linear maps, before the weights have memory.

All linear maps of the layers and the head are quantized; the head to 8 bits at least, for every token is chosen by its
numbers. An embedding that shares its weight with the head shares its numbers; one of its own stays as it is: nothing is
multiplied with it, a token reads one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.quantized.blocks import MOST_INPUTS
from dormouse_worker.model.quantized.formats import FORMATS, Format
from dormouse_worker.model.quantized.modules import QuantizedEmbedding, QuantizedLinear
from dormouse_worker.model.quantized.online import Replaced
from dormouse_worker.model.quantized.rounding import rounding_of
from dormouse_worker.model.weights.layout import Slot


def convert(module: Any, method: str, rounds: Callable[[str], bool] = lambda _: True) -> Mapping[str, Replaced]:
    """Replace what is to be quantized; return what was replaced, by the name of the weight.

    Maps of which `rounds` says no by their path stay as they are, and so do all parts there.

    Raises InvalidSettings, naming the part, for a model with matrices that are neither linear maps nor embeddings.
    """
    for name, why in _misfits(module, rounds):
        raise InvalidSettings(f"quantization is {method}, which {name} {why}; set quantization to none")
    made: dict[int, QuantizedLinear] = {}  # by the plain weight
    replaced: dict[str, Replaced] = {}
    head_weight = _head_weight(module)
    kept = []  # plain weights, which give the identities
    for path, part in list(module.named_modules()):
        if type(part) is not nn.Linear or not rounds(path) or _is_tied_oddly(module, part):
            continue
        kept.append(part.weight)
        chosen = rounding_of(method, is_head=part.weight is head_weight)
        replaced[f"{path}.weight"] = Replaced(_slot(path, part.weight), chosen)
        quantized = QuantizedLinear(part, FORMATS[chosen.name])
        first = made.setdefault(id(part.weight), quantized)
        quantized.weight, quantized.weight_scale = first.weight, first.weight_scale
        module.set_submodule(path, quantized)
    for path, part in list(module.named_modules()):
        if type(part) is nn.Embedding and id(part.weight) in made:
            chosen = rounding_of(method, is_head=part.weight is head_weight)
            replaced[f"{path}.weight"] = Replaced(_slot(path, part.weight), chosen)
            module.set_submodule(path, QuantizedEmbedding(part, made[id(part.weight)]))
    return replaced


def keep(module: Any, formats: Mapping[str, Format]) -> None:
    """Put maps in place whose numbers are kept as a checkpoint has them, by the names of their weights."""
    for name, stored_as in formats.items():
        path = name.removesuffix(".weight")
        module.set_submodule(path, QuantizedLinear(module.get_submodule(path), stored_as))


def _slot(path: str, weight: Any) -> Slot:
    return Slot(f"{path}.weight", 0, tuple(weight.shape), weight.dtype)


def _head_weight(module: Any) -> Any:
    """Return the weight of what computes logits, if transformers knows which it is."""
    find = getattr(module, "get_output_embeddings", None)
    return getattr(find(), "weight", None) if find is not None else None


def _misfits(module: Any, rounds: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    for path, part in module.named_modules():
        if not rounds(path):
            continue
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
