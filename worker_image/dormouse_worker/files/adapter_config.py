"""An adapter's `adapter_config.json` as peft writes it: what it asks for, and what of that is refused. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dormouse_worker.common.errors import AdapterInvalid
from dormouse_worker.files.soft_prompt_config import PEFT_TYPES, SoftPromptConfig, parse_soft_prompt

T = TypeVar("T")

MAX_ALPHA = 1 << 20
MAX_PATTERNS = 2048  # each is compared with every module
MAX_INVOCATION = 64  # tokens, which are compared at many places of a prompt
_PLAIN_KEY = re.compile(r"[\w.-]+")
# Fields that change what is computed: those that are set to anything but these are refused by name.
_NOTHING: tuple[Any, ...] = (None, False, [], {}, "", "none", 0)
_REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA is not computed here; merge it into the base model",
    "use_qalora": "QA-LoRA is not computed here",
    "bias": "biases are not part of what is computed here; train with bias none",
    "lora_bias": "biases are not part of what is computed here; train without",
    "modules_to_save": "whole modules are not replaced; merge them into the base model",
    "trainable_token_indices": "tokens of its own are not computed here; merge them into the base model",
    "invocation_string": "text is not searched for; give its tokens as alora_invocation_tokens",
    "target_parameters": "experts are not adapted here; target linear layers",
    "layer_replication": "layers are not replicated here",
    "fan_in_fan_out": "weights that lie the other way are not read here",
    "arrow_config": "mixed adapters are not computed here",
    "megatron_config": "Megatron's layers are not known here",
}
# Beginnings that change the base's weights: what comes of them fits another base than the one that is served.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """What decides how an adapter's matrices are used."""

    rank: int
    alpha: float
    is_rank_stabilized: bool  # rsLoRA: alpha is divided by the root of the rank
    target_modules: tuple[str, ...]  # ends of modules' names; () = a pattern, which the weights make plain
    covers_all_layers: bool  # every module that a target names has weights
    ranks: Mapping[str, int] = field(default_factory=dict)  # of modules whose names end so
    alphas: Mapping[str, float] = field(default_factory=dict)
    invocation: tuple[int, ...] = ()  # activated LoRA: token ids from whose last place in a prompt on it is used

    @property
    def max_rank(self) -> int:
        """Return the highest rank of any module."""
        return max((self.rank, *self.ranks.values()))

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's matrices."""
        return next((rank for key, rank in self.ranks.items() if ends_with(module, key)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return what the product of a module's matrices is multiplied by."""
        alpha = next((alpha for key, alpha in self.alphas.items() if ends_with(module, key)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)


def ends_with(module: str, end: str) -> bool:
    """Return whether a module has this name, or a name that ends with it at a dot."""
    return module == end or module.endswith(f".{end}")


def parse_config(config: Mapping[str, Any], max_rank: int) -> LoraConfig | SoftPromptConfig:
    """Return what it says. Raises AdapterInvalid naming the field, its value and what is allowed."""
    if config.get("peft_type") in PEFT_TYPES:
        return parse_soft_prompt(config)
    parsed = _parse(config)
    if parsed.max_rank > max_rank:
        raise AdapterInvalid(f"its rank is {parsed.max_rank}; max_lora_rank is {max_rank}")
    return parsed


def _parse(config: Mapping[str, Any]) -> LoraConfig:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise AdapterInvalid(f"peft_type is {kind!r}; computed here are LORA, {', '.join(PEFT_TYPES)}")
    for name, why in _REFUSED.items():
        if (value := config.get(name)) not in _NOTHING:
            raise AdapterInvalid(f"{name} is {value!r}; {why}")
    beginning = config.get("init_lora_weights")
    if isinstance(beginning, str) and beginning.lower().startswith(_CHANGES_BASE):
        raise AdapterInvalid(
            f"init_lora_weights is {beginning!r}, which changes the base's weights; convert it to LoRA"
        )
    targets, exclusions = config.get("target_modules"), ("layers_to_transform", "layers_pattern", "exclude_modules")
    return LoraConfig(
        rank=_rank("r", config.get("r")),
        alpha=_alpha("lora_alpha", config.get("lora_alpha")),
        is_rank_stabilized=_flag("use_rslora", config.get("use_rslora")),
        target_modules=_targets(targets),
        covers_all_layers=all(config.get(name) in _NOTHING for name in exclusions),
        ranks=_by_module("rank_pattern", config.get("rank_pattern"), _rank),
        alphas=_by_module("alpha_pattern", config.get("alpha_pattern"), _alpha),
        invocation=_invocation(config.get("alora_invocation_tokens")),
    )


def _targets(targets: Any) -> tuple[str, ...]:
    if isinstance(targets, str) and targets:
        return ()
    if not isinstance(targets, list) or not targets or not all(isinstance(name, str) and name for name in targets):
        raise AdapterInvalid(f"target_modules is {targets!r}; names of modules are needed")
    return tuple(dict.fromkeys(targets))


def _rank(name: str, rank: Any) -> int:
    if type(rank) is not int or rank < 1:
        raise AdapterInvalid(f"{name} is {rank!r}; a number of at least 1 is needed")
    return rank


def _alpha(name: str, alpha: Any) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= MAX_ALPHA:
        raise AdapterInvalid(f"{name} is {alpha!r}; a number of at most {MAX_ALPHA} is needed")
    return float(alpha)


def _flag(name: str, value: Any) -> bool:
    if value not in (None, True, False):
        raise AdapterInvalid(f"{name} is {value!r}; true or false is needed")
    return bool(value)


def _invocation(token_ids: Any) -> tuple[int, ...]:
    """Return the tokens, () for a plain LoRA, which peft takes an empty list for, too."""
    if token_ids is None:
        return ()
    if not isinstance(token_ids, list) or not all(type(each) is int and each >= 0 for each in token_ids):
        raise AdapterInvalid(f"alora_invocation_tokens is {token_ids!r}; a list of token ids is needed")
    if len(token_ids) > MAX_INVOCATION:
        raise AdapterInvalid(f"alora_invocation_tokens has {len(token_ids)} tokens; at most {MAX_INVOCATION} are read")
    return tuple(token_ids)


def _by_module(name: str, patterns: Any, parse: Callable[[str, Any], T]) -> dict[str, T]:
    if patterns is not None and not isinstance(patterns, dict):
        raise AdapterInvalid(f"{name} is a {type(patterns).__name__}; an object is needed")
    if patterns and len(patterns) > MAX_PATTERNS:
        raise AdapterInvalid(f"{name} has {len(patterns)} entries; at most {MAX_PATTERNS} are read")
    for key in patterns or {}:
        if not _PLAIN_KEY.fullmatch(key):
            raise AdapterInvalid(f"{name} has {key!r}; the end of a module's name is needed, not a pattern")
    return {key: parse(f"{name}.{key}", value) for key, value in (patterns or {}).items()}
