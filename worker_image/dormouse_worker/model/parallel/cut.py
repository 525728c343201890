"""Cuts a model that was built without its weights down to one rank's part, and says what of which tensor that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_worker.common.layout import Layout
from dormouse_worker.model.parallel.plans import ROWWISE, planned_modules
from dormouse_worker.model.parallel.shards import Share
from dormouse_worker.model.parallel.split import Splitter
from dormouse_worker.model.parallel.stages import keep_stage
from dormouse_worker.model.quantized.modules import plain_shapes
from dormouse_worker.model.weights.skeleton import iter_tensors


def cut(module: Any, layout: Layout) -> Mapping[str, Share]:
    """Leave of the module what the rank computes; return for each tensor left, by its name, what it is of the whole.

    Of a weight of fewer bits it is what a plain one would be: outputs and inputs, not bytes.
    Raises InvalidSettings, with the numbers, if the model cannot be divided so.
    """
    first_names: dict[int, str] = {}
    whole = {name: tensor for name, tensor in iter_tensors(module)}  # noqa: C416  keeps them alive: identities count
    shapes = {name: tuple(tensor.shape) for name, tensor in whole.items()}
    shapes.update(plain_shapes(module))
    names = {name: first_names.setdefault(id(tensor), name) for name, tensor in whole.items()}
    if layout.pipeline > 1:
        keep_stage(module, layout)
    splitter = Splitter(module, layout)
    if layout.tensor > 1:
        splitter.split()
    shares = {}
    for name, tensor in iter_tensors(module):
        dim, spans = splitter.pieces.get(id(tensor), (0, None))
        shares[name] = Share(names[name], shapes[name], dim, spans)
    return shares


def num_input_ranks(module: Any, layout: Layout) -> Mapping[str, int]:
    """Return how many ranks the inputs of a whole model's maps are divided among, by the names of their weights."""
    if layout.tensor == 1:
        return {}
    ends = (module.get_input_embeddings(), module.get_output_embeddings())
    planned = planned_modules(module, ends, layout.tensor)
    return {f"{path}.weight": layout.tensor for path, style in planned if style.startswith(ROWWISE)}


def torn_weights(module: Any, layout: Layout, unit: int) -> frozenset[str]:
    """Return the names of weights [out, in] of a whole model whose inputs are divided within so many neighbours."""
    ranks = num_input_ranks(module, layout)
    return frozenset(name for name in ranks if module.get_parameter(name).shape[1] // ranks[name] % unit)
