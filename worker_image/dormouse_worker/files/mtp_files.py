"""What of a checkpoint is its head for multi-token prediction. Pure: looks at what was read of its files.

    eh_proj [H, 2 H]        of a token's vector and the state before it, makes a row
    enorm, hnorm            of the vector, and of the state
    …                       a layer as the model's last, whose experts have tensors of their own each
    shared_head.norm        of what the layer makes; it is what the output matrix is multiplied with, and the next state
    embed_tokens, shared_head.head are not read: the model's own are taken

All lie under model.layers.N, where N is how many layers the model has. The names are those of DeepSeek-V3 and GLM-4.5
(DeepSeek-AI, 'DeepSeek-V3 Technical Report', 2024, 2.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_worker.common.errors import InvalidSettings

FAMILIES = ("deepseek_v3", "glm4_moe")
COUNT = "num_nextn_predict_layers"
UNREAD = ("embed_tokens.weight", "shared_head.head.weight")
_ROUTER_BIAS = ".e_score_correction_bias"  # float32 whatever the model computes in
_BLOCK, _NORM, _STORED_NORM = "mtp_block.", "post_norm.", "shared_head.norm."
_EXPERTS = {"experts.gate_up_proj": ("gate_proj", "up_proj"), "experts.down_proj": ("down_proj",)}

Shape = tuple[int, ...]


def check_mtp(config: Mapping[str, Any]) -> None:
    """Raise InvalidSettings where a model's configuration describes no head that is read."""
    if (kind := config.get("model_type")) not in FAMILIES:
        raise InvalidSettings(
            f"speculation_method is mtp, and model_type is {kind!r}; read are the heads of {' and '.join(FAMILIES)}: "
            "use eagle, draft, or suffix"
        )
    if (count := config.get(COUNT)) != 1:
        raise InvalidSettings(
            f"speculation_method is mtp, and {COUNT} is {count!r}; read are heads of 1 layer: use eagle, draft, or "
            "suffix"
        )


def is_float32(name: str) -> bool:
    """Return whether a tensor is float32 whatever the model computes in."""
    return name.endswith(_ROUTER_BIAS)


def stored_parts(name: str, shape: Shape) -> dict[str, Shape]:
    """Return the tensors of the files, in order, that one of transformers' `MtpLayer` has behind each other.

    Their names are those within the head.
    """
    name = name.removeprefix(_BLOCK)
    for joined, maps in _EXPERTS.items():
        if name.endswith(joined):
            prefix, each = name.removesuffix(joined), (shape[1] // len(maps), *shape[2:])
            return {f"{prefix}experts.{i}.{one}.weight": each for i in range(shape[0]) for one in maps}
    return {name.replace(_NORM, _STORED_NORM) if name.startswith(_NORM) else name: shape}
