"""What a model's configuration alone says about it: whether the paged cache can serve it, and how long it may read."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

from dormouse_worker.common.errors import CustomCodeRefused, ModelInvalid

SUPPORTED_LAYER_TYPES = {"full_attention", "sliding_attention"}
ALIBI_MODELS = {"bloom", "mpt"}  # without a switch, or with one in a place of their own


HIDDEN_WINDOWS = {"phimoe"}  # its masks have a sliding window that its attention is not told of


def check_known(path: Path, config: Mapping[str, Any]) -> None:
    """Raise CustomCodeRefused for a model that only the code beside it can compute; of the others it is not run."""
    kind = config.get("model_type")
    if "auto_map" in config and kind not in CONFIG_MAPPING:
        raise CustomCodeRefused(
            f"{path / 'config.json'}: auto_map asks for Python code from the model's directory, which is never run, "
            f"and transformers has no model_type {kind!r} itself; use a model of an architecture that it has"
        )


def check_architecture(config: Any) -> None:
    """Raise ModelInvalid, naming the architecture and what it needs, unless the paged cache may serve it."""
    missing = _find_missing(config)
    if missing is not None:
        raise ModelInvalid(f"{config.model_type} needs {missing}, which the paged cache does not offer")


def check_forward(module: Any, *, keeps_all_logits: bool = False) -> None:
    """Raise ModelInvalid unless a pass can hold several sequences and answer some rows of them.

    `keeps_all_logits`: rows are chosen before the head, by us.

    Arguments that a model does not know vanish without a word: it would count positions through the whole batch.
    """
    known = inspect.signature(type(module).forward).parameters
    for name in ("position_ids",) if keeps_all_logits else ("position_ids", "logits_to_keep"):
        if name not in known:
            raise ModelInvalid(f"{type(module).__name__} takes no {name}, which a batch of several sequences needs")
    if any(hasattr(part, "create_position_ids_from_input_ids") for part in module.modules()):
        raise ModelInvalid(
            f"{type(module).__name__} counts positions from pad_token_id + 1 and leaves padding out, which "
            "positions in a paged cache do not; use a model made for generating text"
        )


def _find_missing(config: Any) -> str | None:
    text_config = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        return "attention to the output of an encoder"
    if text_config.model_type in ALIBI_MODELS or getattr(text_config, "alibi", False):
        return "position biases on attention scores (ALiBi)"
    unknown = sorted(set(getattr(text_config, "layer_types", None) or []) - SUPPORTED_LAYER_TYPES)
    if unknown:
        return f"layers of type {', '.join(unknown)}"
    return None


def find_position_limit(config: Any) -> int | None:
    """Return the longest sequence in tokens, None where the configuration names none.

    A rotary embedding of type longrope changes its frequencies for a whole pass as soon as one of its positions is
    beyond the original length. Keys in the cache would keep the old ones, and a long sequence would change what its
    neighbours say; so the original length is the limit.
    """
    text_config = config.get_text_config()
    limits = [
        rope["original_max_position_embeddings"]
        for rope in _rope_parameters(text_config)
        if rope.get("rope_type") == "longrope" and rope.get("original_max_position_embeddings")
    ]
    window = getattr(text_config, "sliding_window", None)
    if window and getattr(text_config, "model_type", "") in HIDDEN_WINDOWS:
        limits.append(window)  # up to there it hides nothing
    own = getattr(text_config, "max_position_embeddings", None)
    if own is not None:
        limits.append(own)
    return min(map(int, limits), default=None)


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Return one for all layers, or one for each type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
