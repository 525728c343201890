"""What an EAGLE head's directory must hold. Pure: looks at what was read of its files.

    fc.weight [H, 2 H]    of a token's vector, and the state before it, makes a row
    fc.bias [H]           or none
    layers.0.*            a layer as the model has them, but for the norm before it attends
    embed_tokens, lm_head are not read: the model's own are taken

The names are those of EAGLE's first version (Li et al., 'EAGLE', 2024), as its authors publish heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor

LAYER = "layers.0."
UNREAD = frozenset({"embed_tokens.weight", "lm_head.weight"})
_OF_EAGLE = frozenset({"bias", "qkv_bias"})  # of a head's config.json, which its tensors show anyway
_THIRD = ("midlayer.", "d2t", "t2d")

Shapes = Mapping[str, tuple[int, ...]]


def as_model_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a head's configuration as that of a model of one such layer, whatever an engine calls its class."""
    names = config.get("architectures")
    plain = {name: value for name, value in config.items() if name not in _OF_EAGLE}
    if isinstance(names, list):
        plain["architectures"] = [str(name).removesuffix("Eagle").removeprefix("Eagle") for name in names]
    return plain


def check_numbers(config: Mapping[str, Any], wanted: Mapping[str, int]) -> None:
    """Raise InvalidSettings unless a head's configuration says these numbers, its model's."""
    for name, number in wanted.items():
        if config.get(name) != number:
            raise InvalidSettings(
                f"{name} is {config.get(name)}, and {number} is needed: a head has one layer, and reads the states of "
                "the model that it was trained with"
            )


def check_tensors(stored: Mapping[str, StoredTensor], wanted: Shapes, dtype: str) -> None:
    """Raise ModelInvalid or InvalidSettings unless the files hold these tensors in a type, and none that is unknown."""
    if third := next((name for name in sorted(stored) if name.startswith(_THIRD)), None):
        raise InvalidSettings(f"{third} is of an EAGLE-3 head; heads of EAGLE's first version are computed")
    for name, shape in wanted.items():
        if name not in stored:
            raise ModelInvalid(f"{name} is missing; copy the head again")
        if stored[name].shape != shape:
            raise ModelInvalid(f"{stored[name].file}: {name} is {list(stored[name].shape)}, not {list(shape)}")
        if stored[name].dtype != dtype:
            raise InvalidSettings(
                f"{stored[name].file}: {name} is {stored[name].dtype}, and the model computes in {dtype}; convert it"
            )
    if strangers := sorted(stored.keys() - wanted.keys() - UNREAD):
        raise ModelInvalid(f"{stored[strangers[0]].file}: {strangers[0]} is no tensor of an EAGLE head's")
