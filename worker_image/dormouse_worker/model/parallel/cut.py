"""Cuts a model that was built without its weights down to one rank's part, and says what of which tensor that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_worker.common.layout import Layout
from dormouse_worker.model.parallel.shards import Share
from dormouse_worker.model.parallel.split import Splitter
from dormouse_worker.model.parallel.stages import keep_stage
from dormouse_worker.model.weights.skeleton import iter_tensors


def cut(module: Any, layout: Layout) -> Mapping[str, Share]:
    """Leave of the module what the rank computes; return for each tensor left, by its name, what it is of the whole.

    Raises InvalidSettings, with the numbers, if the model cannot be divided so.
    """
    first_names: dict[int, str] = {}
    whole = {name: tensor for name, tensor in iter_tensors(module)}  # noqa: C416  keeps them alive: identities count
    names = {name: first_names.setdefault(id(tensor), name) for name, tensor in whole.items()}
    if layout.pipeline > 1:
        keep_stage(module, layout)
    splitter = Splitter(module, layout)
    if layout.tensor > 1:
        splitter.split()
    shares = {}
    for name, tensor in iter_tensors(module):
        dim, spans = splitter.pieces.get(id(tensor), (0, None))
        shares[name] = Share(names[name], tuple(whole[name].shape), dim, spans)
    return shares
