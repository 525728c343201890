"""What transformers' own encoders and projectors make of one image or one sound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers.masking_utils import create_bidirectional_mask

Tensors = Mapping[str, torch.Tensor]
Parts = Iterable[torch.Tensor]  # of an image, each [..., H]
# Of a model without its head and what a processor made: the rows, and what is added behind each of the first layers.
Features = Callable[[Any, Tensors], Sequence[Parts]]


def image_rows(model: Any, tensors: Tensors) -> Sequence[Parts]:
    """Return the rows of an image."""
    features = model.get_image_features(**tensors)
    return [features.pooler_output, *(getattr(features, "deepstack_features", None) or ())]


def sound_rows(model: Any, tensors: Tensors) -> Sequence[Parts]:
    """Return the rows of a sound, as `Qwen2AudioModel.forward` makes them: it has no function for them.

    The encoder takes a whole window; silence behind the sound is seen by nothing, and has no rows.
    """
    tower, frames = model.audio_tower, tensors["feature_attention_mask"].sum(-1)
    num_positions, num_rows = tower._get_feat_extract_output_lengths(frames)  # noqa: SLF001  # as their model does
    is_heard = torch.arange(tower.config.max_source_positions, device=frames.device)[None] < num_positions[:, None]
    mask = create_bidirectional_mask(
        config=tower.config,
        inputs_embeds=tensors["input_features"].new_zeros(*is_heard.shape, 1),
        attention_mask=is_heard.long(),
    )
    encoded = tower(tensors["input_features"], attention_mask=mask).last_hidden_state
    return [model.multi_modal_projector(encoded)[:, : int(num_rows[0])]]
