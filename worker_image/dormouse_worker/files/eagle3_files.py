"""What the directory of an EAGLE-3 head must hold. Pure: looks at what was read of its files.

    fc.weight [H, n H]        of what comes of n depths of the model, a row
    midlayer.*                a layer whose queries, keys and values are of 2 H: a token's vector, and the row
    midlayer.input_layernorm  of the vector
    midlayer.hidden_norm      of the row
    norm, lm_head [Vd, H]     of what its layer makes of a row, which is the next row, a token of its own vocabulary
    d2t [Vd]                  what to add to such a token for the model's; none = both vocabularies are the same
    t2d [V]                   whether a token of the model's is in its own, or none

The names are those of EAGLE's authors (Li et al., 'EAGLE-3', 2025), of vLLM and SGLang; some files call the layer
layers.0, as those of the first version do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.files.eagle_files import LAYER

MIDLAYER = "midlayer."
NORM, HEAD = "norm.weight", "lm_head.weight"
INPUT_NORM, HIDDEN_NORM = "input_layernorm.weight", "hidden_norm.weight"  # of its layer
D2T, T2D = "d2t", "t2d"
TYPES = {D2T: "I64", T2D: "BOOL"}
UNREAD = frozenset({"embed_tokens.weight"})  # the model's own is taken
_DEPTHS = "eagle_aux_hidden_state_layer_ids"


def layer_of(names: Collection[str]) -> str | None:
    """Return how the names of an EAGLE-3 head's layer begin; None = these tensors are of the first version's."""
    if any(name.startswith(MIDLAYER) for name in names):
        return MIDLAYER
    return LAYER if {D2T, T2D, LAYER + HIDDEN_NORM} & {*names} else None


def own_vocabulary(config: Mapping[str, Any], vocab_size: int) -> int:
    """Return how many tokens it can say. Raises InvalidSettings for more than its model can."""
    size = config.get("draft_vocab_size")
    if size is None:
        return vocab_size
    if type(size) is not int or not 0 < size <= vocab_size:
        raise InvalidSettings(f"draft_vocab_size is {size!r}, and the model's vocab_size is {vocab_size}")
    return size


def check_kind(config: Mapping[str, Any]) -> None:
    """Raise InvalidSettings for a head that computes otherwise than EAGLE's authors' do."""
    if config.get("norm_before_residual"):
        raise InvalidSettings("norm_before_residual is true, and heads are computed that add to rows before their norm")
    if not _nested(config).get("use_aux_hidden_state", True):
        raise InvalidSettings(
            "use_aux_hidden_state is false, and heads are computed that read states of several layers"
        )
    size = config.get("hidden_size")
    if config.get("target_hidden_size", size) != size:
        raise InvalidSettings(
            f"target_hidden_size is {config['target_hidden_size']!r} and hidden_size {size}; heads are computed that "
            "are as wide as their model"
        )


def depths_of(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return behind how many of its model's layers a head reads states. Raises InvalidSettings where there are none.

    vLLM's name counts layers before the state, SGLang's names the layer that it comes of. Without either they are
    where all heads were trained at first: behind two layers, half of them, and all but three.
    """
    if (said := config.get(_DEPTHS)) is not None:
        depths, name = said, _DEPTHS
    elif (said := _nested(config).get(_DEPTHS)) is not None:
        depths, name = _each_more(said), f"eagle_config.{_DEPTHS}"
    else:
        depths, said = [2, num_layers // 2, num_layers - 3], None
        name = f"without {_DEPTHS}, what it"
    is_list = isinstance(depths, list) and 1 < len(depths) <= num_layers + 1
    if not is_list or not all(type(depth) is int and 0 <= depth <= num_layers for depth in depths):
        what = f"reads is behind {depths} layers" if said is None else f"is {said!r}"
        raise InvalidSettings(
            f"{name} {what}, and the model has {num_layers} layers: a head reads what comes of 0 to {num_layers} of "
            f"them, at 2 to {num_layers + 1} places"
        )
    return tuple(depths)


def _nested(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("eagle_config")
    return nested if isinstance(nested, Mapping) else {}


def _each_more(layers: Any) -> Any:
    """Return the depth behind each of these layers; anything else as it is."""
    is_list = isinstance(layers, list) and all(type(layer) is int for layer in layers)
    return [layer + 1 for layer in layers] if is_list else layers
