"""What an EAGLE head's directory must hold. Pure: looks at what was read of its files.

    fc.weight [H, 2 H]    of a token's vector, and the state before it, makes a row
    fc.bias [H]           or none
    layers.0.*            a layer as the model has them, but for the norm before it attends
    embed_tokens, lm_head are not read: the model's own are taken

The names are those of EAGLE's first version (Li et al., 'EAGLE', 2024), as its authors publish heads. Those of its
third version are in `eagle3_files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor

FC, FC_BIAS = "fc.weight", "fc.bias"
LAYER = "layers.0."
UNREAD = frozenset({"embed_tokens.weight", "lm_head.weight"})
_OF_EAGLE = frozenset(  # of a head's config.json, which no model has
    {
        "bias",  # its tensors show it anyway
        "draft_vocab_size",
        "eagle_aux_hidden_state_layer_ids",
        "eagle_config",
        "norm_before_residual",
        "qkv_bias",
        "target_hidden_size",
    }
)
_ROPE = ("rope_theta", "rope_parameters")
_ROPE_THETA = 10_000.0  # of Llama where nothing is said, as in the heads that EAGLE's authors publish

Shapes = Mapping[str, tuple[int, ...]]


def as_model_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a head's configuration as that of a model of one such layer, whatever an engine calls its class."""
    names = config.get("architectures")
    plain = {name: value for name, value in config.items() if name not in _OF_EAGLE}
    if isinstance(names, list):
        plain["architectures"] = [_plain_name(str(name)) for name in names]
    return plain if any(name in plain for name in _ROPE) else plain | {"rope_theta": _ROPE_THETA}


def check_numbers(config: Mapping[str, Any], wanted: Mapping[str, int]) -> None:
    """Raise InvalidSettings unless a head's configuration says these numbers, its model's."""
    for name, number in wanted.items():
        if config.get(name) != number:
            raise InvalidSettings(
                f"{name} is {config.get(name)}, and {number} is needed: a head has one layer, and reads the states of "
                "the model that it was trained with"
            )


def check_tensors(
    stored: Mapping[str, StoredTensor],
    wanted: Shapes,
    dtype: str,
    *,
    unread: frozenset[str] = UNREAD,
    others: Mapping[str, str] | None = None,
) -> None:
    """Raise ModelInvalid or InvalidSettings unless the files hold these tensors in a type, and none that is unknown.

    `others` are of types of their own, by name.
    """
    types = others or {}
    for name, shape in wanted.items():
        if name not in stored:
            raise ModelInvalid(f"{name} is missing; copy the head again")
        if stored[name].shape != shape:
            raise ModelInvalid(f"{stored[name].file}: {name} is {list(stored[name].shape)}, not {list(shape)}")
        if name in types and stored[name].dtype != types[name]:
            raise ModelInvalid(f"{stored[name].file}: {name} is {stored[name].dtype}, not {types[name]}")
        if stored[name].dtype != types.get(name, dtype):
            raise InvalidSettings(
                f"{stored[name].file}: {name} is {stored[name].dtype}, and the model computes in {dtype}; convert it"
            )
    if strangers := sorted(stored.keys() - wanted.keys() - unread):
        raise ModelInvalid(f"{stored[strangers[0]].file}: {strangers[0]} is no tensor of an EAGLE head's")


def _plain_name(name: str) -> str:
    """Return the class of a model whose layer a head of this class has."""
    for mark in ("Eagle3", "Eagle"):
        name = name.removesuffix(mark).removeprefix(mark)
    return name
