"""How the weights of a model that needs no torch lie in memory, plain or of fewer bits, and where they come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dormouse_worker.common.settings import NONE
from dormouse_worker.model.bare.config import BareConfig
from dormouse_worker.model.bare.tensors import EMBEDDING, GATE_UP, HEAD, MAPS, QKV, prefix, shapes_of
from dormouse_worker.model.lean.parts import Linear
from dormouse_worker.model.quantized.blocks import SCALE
from dormouse_worker.model.quantized.online import OnlineSource, Replaced
from dormouse_worker.model.quantized.rounding import Rounding, rounding_of
from dormouse_worker.model.tensors import Dtype, Tensor
from dormouse_worker.model.weights.checkpoint import PlainSource, Tensors
from dormouse_worker.model.weights.layout import Slot, WeightLayout, plan_layout
from dormouse_worker.model.weights.source import WeightSource
from dormouse_worker.model.weights.store import WeightStore

Maps = Callable[..., Linear]  # of linear maps that are multiplied in one go, by their names


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The tensors of the files, and how they lie in memory."""

    shapes: Mapping[str, tuple[int, ...]]  # as the files have them
    dtype: Dtype  # of what is not rounded
    roundings: Mapping[str, Rounding]  # of what is, by name
    layout: WeightLayout

    @property
    def num_parameters(self) -> int:
        """Return how many numbers the model has."""
        return sum(map(math.prod, self.shapes.values()))

    def source(self, list_tensors: Callable[[], Tensors]) -> WeightSource:
        """Return where the contents come from; `list_tensors` reads the files' headers anew."""
        plain = PlainSource(list_tensors, {name: name for name in self.shapes})
        if not self.roundings:
            return plain
        return OnlineSource(
            plain,
            {
                name: Replaced(Slot(name, 0, self.shapes[name], self.dtype), rounding)
                for name, rounding in self.roundings.items()
            },
        )

    def maps_in(self, weights: WeightStore) -> Maps:
        """Return a function that finds linear maps in memory."""

        def linear(*names: str) -> Linear:
            def span(kind: str) -> Tensor | None:
                found = [f"{name}.{kind}" for name in names]
                return weights.span(found) if found[0] in known else None

            return Linear(
                span("weight"), span("bias"), scale=span(SCALE), format=self.roundings.get(f"{names[0]}.weight")
            )

        known = {slot.name for slot in self.layout.slots}
        return linear


def plan_weights(config: BareConfig, dtype: Dtype, method: str) -> WeightPlan:
    """Return the plan; `method` is how linear maps are rounded. What is multiplied in one go lies without a gap."""
    shapes, roundings = shapes_of(config), _roundings(config, method)
    return _plan(shapes, dtype, roundings, list(map(prefix, range(config.num_hidden_layers))))


def plan_plain(shapes: Mapping[str, tuple[int, ...]], dtype: Dtype, layers: Sequence[str]) -> WeightPlan:
    """Return the plan of plain tensors of these shapes; names in a layer begin with one of `layers`."""
    return _plan(shapes, dtype, {}, layers)


def _plan(
    shapes: Mapping[str, tuple[int, ...]], dtype: Dtype, roundings: Mapping[str, Rounding], layers: Sequence[str]
) -> WeightPlan:
    tensors = list(_planned(shapes, dtype, roundings))
    layout = plan_layout(tensors, _joined(layers, {name for name, _ in tensors}), identify=id)
    return WeightPlan(shapes, dtype, roundings, layout)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A tensor before there is memory for it."""

    shape: tuple[int, ...]
    dtype: Dtype


def _roundings(config: BareConfig, method: str) -> dict[str, Rounding]:
    """Return how each weight of fewer bits is rounded, by its name; an embedding of its own stays as it is."""
    if method == NONE:
        return {}
    head = EMBEDDING if config.tie_word_embeddings else HEAD
    names = [prefix(layer) + name for layer in range(config.num_hidden_layers) for name in MAPS]
    return {f"{name}.weight": rounding_of(method, is_head=name == head) for name in (*names, head)}


def _planned(
    shapes: Mapping[str, tuple[int, ...]], dtype: Dtype, roundings: Mapping[str, Rounding]
) -> Iterator[tuple[str, _Planned]]:
    for name, shape in shapes.items():
        if (rounding := roundings.get(name)) is None:
            yield name, _Planned(shape, dtype)
        else:
            yield name, _Planned((shape[0], rounding.row_bytes(shape[1])), np.dtype(np.uint8))
            yield name.removesuffix("weight") + SCALE, _Planned(shape[:1], np.dtype(np.float32))


def _joined(layers: Sequence[str], known: set[str]) -> Sequence[Sequence[str]]:
    groups = [
        [f"{layer}{name}.{kind}" for name in names]
        for layer in layers
        for names in (QKV, GATE_UP)
        for kind in ("weight", SCALE, "bias")
    ]
    return [group for group in groups if group[0] in known]
