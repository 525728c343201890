"""How a model wants to be divided: transformers' own plans, and ours for models that have none there.

A tensor plan names modules and a style: `colwise` gives each rank some outputs, `rowwise` some inputs (its results are
then summed up). A stage plan names the modules before the layers, the layers, and the modules behind them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dormouse_worker.common.errors import InvalidSettings

ROWWISE = "rowwise"  # what styles begin with that divide a map's inputs
REPLICATED = "replicated_with_grad_allreduce"  # of what every rank has whole; the rest of the name is for training
STYLES = frozenset({"colwise", "rowwise", "colwise_gather_output", "rowwise_split_input", "packed_colwise", REPLICATED})
ENTRANCES = ("input_ids", "inputs_embeds")  # what comes into modules that lie before the layers
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Module names."""

    before: tuple[str, ...]
    layers: str
    behind: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnPlan:
    """For a model that transformers has no plan for."""

    styles: Mapping[str, str]  # by module name, * for a layer's number
    stages: StagePlan
    num_packed: int  # parts of each `packed_colwise` module
    adapt: Callable[[Any, int], None]  # given the module and T, once its tensors are divided


def _adapt_gpt2(module: Any, tensor: int) -> None:
    for block in module.transformer.h:
        if hasattr(block, "attn"):  # it is not another stage's
            block.attn.split_size //= tensor


OWN_PLANS: Mapping[str, OwnPlan] = MappingProxyType(
    {
        "GPT2LMHeadModel": OwnPlan(
            styles={
                "transformer.h.*.attn.c_attn": "packed_colwise",
                "transformer.h.*.attn.c_proj": "rowwise",
                "transformer.h.*.mlp.c_fc": "colwise",
                "transformer.h.*.mlp.c_proj": "rowwise",
            },
            stages=StagePlan(("transformer.wte", "transformer.wpe"), "transformer.h", ("transformer.ln_f", "lm_head")),
            num_packed=3,
            adapt=_adapt_gpt2,
        )
    }
)


def planned_modules(module: Any, ends: Sequence[Any], tensor: int) -> Iterator[tuple[str, str]]:
    """Yield name and style of each module to divide but the `ends`. Raises InvalidSettings if that is not possible."""
    name = type(module).__name__
    own = OWN_PLANS.get(name)
    styles = own.styles if own is not None else dict(getattr(module, "_tp_plan", None) or {})
    refused = f"tensor_parallel_size is {tensor}; {name}"
    if not any(style.startswith(ROWWISE) for style in styles.values()):
        raise InvalidSettings(f"{refused} has no plan for how ranks share its layers; set it to 1")
    for path, part in module.named_modules():
        style = styles.get(path) or styles.get(_NUMBER.sub(".*", path))
        if any(part is end for end in ends):
            continue
        if style is not None and style not in STYLES:
            raise InvalidSettings(f"{refused} wants {path} divided as {style}, which this version cannot; set it to 1")
        if style is not None and style != REPLICATED:
            yield path, style


def stage_plan(module: Any, pipeline: int) -> StagePlan:
    """Return which modules lie where. Raises InvalidSettings if the model does not tell."""
    own = OWN_PLANS.get(type(module).__name__)
    if own is not None:
        return own.stages
    plan: Mapping[str, Any] = getattr(module, "_pp_plan", None) or {}  # name -> names of what comes in and goes out
    layers = next((name for name in plan if name.rpartition(".")[2] == "layers"), None)
    if layers is None:
        raise InvalidSettings(
            f"pipeline_parallel_size is {pipeline}; {type(module).__name__} has no plan for stages; set it to 1"
        )
    before = [name for name, (incoming, _) in plan.items() if incoming[0] in ENTRANCES]
    return StagePlan(tuple(before), layers, tuple(plan.keys() - {*before, layers}))
