"""Leaves of a model what one stage computes, so that transformers' own loop over the layers still runs.

stage 0    embed | layers 0, 1 | -> send          the others' layers pass on what they get, their norm and head too
stage 1    zeros | pass, pass | receive -> layers 2, 3 | norm, head

Which layers are whose is decided by what each part costs, see `stage_split`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import nn

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.stage_split import ModelCosts, split_layers
from dormouse_worker.model.context import current_communicator
from dormouse_worker.model.parallel.plans import StagePlan, stage_plan
from dormouse_worker.model.quantized.blocks import SCALE
from dormouse_worker.model.quantized.modules import QuantizedEmbedding, plain_shapes

EMBEDDINGS = nn.Embedding | QuantizedEmbedding
LAYER_COST, END_COST = 9, 8  # of a weight: attention, norms and gates come with a layer's
SAMPLER_WEIGHTS = 50  # a sampled logit takes as long as so many weights of the head (docs/concepts/parallelism.md)


class Elsewhere(nn.Module):
    """What another stage computes: a layer, the norm, the head."""

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return what came."""
        return hidden_states


class Silent(nn.Module):
    """An embedding of the first stage, on a later one: zeros in the shape that what follows expects."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._size, self._dtype = size, dtype

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return zeros [..., H]."""
        return torch.zeros(*token_ids.shape, self._size, dtype=self._dtype, device=token_ids.device)


def keep_stage(module: Any, layout: Layout) -> None:
    """Take everything out of the module that is not the rank's. Raises InvalidSettings, with the numbers."""
    plan = stage_plan(module, layout.pipeline)
    layers = module.get_submodule(plan.layers)
    if layout.pipeline > len(layers):
        raise InvalidSettings(
            f"pipeline_parallel_size is {layout.pipeline}; the model has {len(layers)} layers, one for each stage is "
            "the least"
        )
    own = split_layers(count_costs(module, plan), layout.pipeline)[layout.stage]
    for i in range(len(layers)):
        if i not in own:
            layers[i] = Elsewhere()
    if not layout.is_first_stage:
        _silence(module, plan)
        layers[own.start].register_forward_pre_hook(_receive, with_kwargs=True)
    if not layout.is_last_stage:
        for name in plan.behind:
            module.set_submodule(name, Elsewhere())


def count_costs(module: Any, plan: StagePlan) -> ModelCosts:
    """Return what the parts of a whole module cost for one token: the weights that it is multiplied with, in eighths.

    It meets one row of an embedding. The sampler is put behind the head, by the vocabulary.
    """
    before, behind = ([module.get_submodule(name) for name in names] for names in (plan.before, plan.behind))
    vocab_size = int(module.config.get_text_config().vocab_size)
    return ModelCosts(
        layers=tuple(LAYER_COST * _num_weights(layer) for layer in module.get_submodule(plan.layers)),
        before=END_COST * sum(part.embedding_dim for part in before if isinstance(part, EMBEDDINGS)),
        behind=END_COST * (sum(map(_num_weights, behind)) + vocab_size * SAMPLER_WEIGHTS),
    )


def own_layers(module: Any, layout: Layout) -> list[int]:
    """Return which layers a rank's part of a module has; without stages, how many its configuration says."""
    if layout.pipeline == 1:
        return list(range(int(module.config.get_text_config().num_hidden_layers)))
    layers = module.get_submodule(stage_plan(module, layout.pipeline).layers)
    return [index for index, layer in enumerate(layers) if is_here(layer)]


def is_here(module: Any) -> bool:
    """Return whether this rank computes it."""
    return not isinstance(module, Elsewhere | Silent)


def send_stage(module: Any, arguments: Mapping[str, Any]) -> torch.Tensor:
    """Compute the layers of a stage that is not the last; send and return the hidden states [1, T, H]."""
    hidden: torch.Tensor = module.base_model(**arguments).last_hidden_state
    if hidden.dim() != 3:
        name = type(module).__name__
        raise InvalidSettings(f"pipeline_parallel_size is above 1; {name}'s layers pass on more than hidden states")
    current_communicator().send(hidden)
    return hidden


def _num_weights(module: Any) -> int:
    """Return how many a plain module has, so that all ranks count alike whatever they keep in fewer bits."""
    plain = plain_shapes(module)
    parameters = [(name, one) for name, one in module.named_parameters() if not name.endswith(SCALE)]
    return sum(prod(plain.get(name, parameter.shape)) for name, parameter in parameters)


def _dtype_of(embedding: Any) -> torch.dtype:
    """Return what a token's row is computed in."""
    dtype: torch.dtype = (embedding if isinstance(embedding, QuantizedEmbedding) else embedding.weight).dtype
    return dtype


def _silence(module: Any, plan: StagePlan) -> None:
    for name in plan.before:
        embedding = module.get_submodule(name)
        if isinstance(embedding, EMBEDDINGS):
            module.set_submodule(name, Silent(embedding.embedding_dim, _dtype_of(embedding)))
        elif next(embedding.parameters(), None) is not None:
            raise InvalidSettings(
                f"pipeline_parallel_size is above 1; {type(module).__name__} has a {type(embedding).__name__} at "
                f"{name}, which cannot be left to the first stage; set it to 1"
            )


def _receive(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put what the stage before sent in the place of what came from the silent embedding."""
    if args:
        return (current_communicator().receive(args[0]), *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": current_communicator().receive(kwargs["hidden_states"])}
