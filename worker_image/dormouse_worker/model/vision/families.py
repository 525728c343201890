"""The models that read images or sound, by `model_type`: what of them is the language model, what encoders take.

Who adds one adds it to the tests of `tests/worker/model/vision/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.images import IMAGES, SOUNDS, Noun
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import NONE, EngineSettings
from dormouse_worker.files.speech_files import FRAMES_A_POSITION
from dormouse_worker.model.vision.features import Features, Tensors, image_rows, sound_rows

MOST_TILES = 13  # that processors cut an image into by their defaults: 12, and the whole
MOST_MASKED_TILES = 17  # 4 × 4, and the whole
MOST_PATCHED_ROWS = 2048  # of one image that is profiled, of models that take any size
MOST_ROWS = 8192  # of encoded images, where longer passes do not need more


@dataclass(frozen=True, slots=True)
class VisionFamily:
    """Models whose images are computed exactly as transformers does."""

    largest: Callable[[Any], Tensors]  # of a configuration: what its processor makes of the largest image
    text: str = "language_model"  # its name within `module.model`
    has_grids: bool = False  # positions are in time, height and width
    is_whole: bool = False  # an image's tokens see each other: they are computed in one pass
    features: Features = image_rows
    keeps_all_logits: bool = False  # transformers' class has no logits_to_keep: its language model computes alone
    noun: Noun = IMAGES  # what its encoder reads


def _square(config: Any, *shape: int) -> torch.Tensor:
    """Return ones of so many pictures or tiles, as large as the encoder takes them."""
    size = config.vision_config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return torch.ones(*shape, getattr(config.vision_config, "num_channels", 3), height, width)


def _one_picture(config: Any) -> Tensors:
    return {"pixel_values": _square(config, 1)}


def _tiles(config: Any) -> Tensors:
    return {"pixel_values": _square(config, MOST_TILES)}


def _masked_tiles(config: Any) -> Tensors:
    pixels = _square(config, 1, MOST_MASKED_TILES)
    return {"pixel_values": pixels, "pixel_attention_mask": torch.ones_like(pixels[:, :, 0], dtype=torch.long)}


def _sized_picture(config: Any) -> Tensors:
    if config.vision_config.model_type != "pixtral":
        return _one_picture(config)
    pixels = _square(config, 1)
    return {"pixel_values": pixels, "image_sizes": torch.tensor([pixels.shape[-2:]])}


def _pinpointed_tiles(config: Any) -> Tensors:
    size = config.vision_config.image_size
    height, width = max(config.image_grid_pinpoints, key=lambda point: point[0] * point[1])
    num_tiles = 1 + (height // size) * (width // size)
    return {"pixel_values": _square(config, 1, num_tiles), "image_sizes": torch.tensor([[height, width]])}


def _tiles_of_one(config: Any) -> Tensors:
    return {**_pinpointed_tiles(config), "batch_num_images": torch.ones(1, dtype=torch.long)}


def _patches(config: Any) -> Tensors:
    vision = config.vision_config
    side = vision.spatial_merge_size * math.isqrt(MOST_PATCHED_ROWS)
    size = getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
    return {"pixel_values": torch.ones(side * side, size), "image_grid_thw": torch.tensor([[1, side, side]])}


def _whole_window(config: Any) -> Tensors:
    audio = config.audio_config
    num_frames = FRAMES_A_POSITION * audio.max_source_positions
    mask = torch.ones(1, num_frames, dtype=torch.int32)
    return {"input_features": torch.ones(1, audio.num_mel_bins, num_frames), "feature_attention_mask": mask}


FAMILIES: Mapping[str, VisionFamily] = MappingProxyType(
    {
        "aya_vision": VisionFamily(_tiles),
        "gemma3": VisionFamily(_one_picture, is_whole=True),
        "idefics3": VisionFamily(_masked_tiles, text="text_model"),
        "internvl": VisionFamily(_tiles),
        "llava": VisionFamily(_sized_picture),
        "llava_next": VisionFamily(_pinpointed_tiles),
        "llava_onevision": VisionFamily(_tiles_of_one),
        "mistral3": VisionFamily(_sized_picture),
        "qwen2_5_vl": VisionFamily(_patches, has_grids=True),
        "qwen2_audio": VisionFamily(_whole_window, features=sound_rows, keeps_all_logits=True, noun=SOUNDS),
        "qwen2_vl": VisionFamily(_patches, has_grids=True),
        "qwen3_vl": VisionFamily(_patches, has_grids=True),
        "qwen3_vl_moe": VisionFamily(_patches, has_grids=True),
        "smolvlm": VisionFamily(_masked_tiles, text="text_model"),
        "vipllava": VisionFamily(_one_picture),
    }
)


def family_of(config: Any) -> VisionFamily | None:
    """Return the family of a model's configuration; None = its images are not read."""
    return FAMILIES.get(config.model_type)


def check_vision(config: Any, settings: EngineSettings, layout: Layout) -> None:
    """Raise InvalidSettings where what is set does not go with a model that reads images."""
    for name, value, allowed in (
        ("tensor_parallel_size", layout.tensor, 1),
        ("pipeline_parallel_size", layout.pipeline, 1),
        ("enable_lora", settings.enable_lora, False),
        ("quantization", settings.quantization, NONE),
    ):
        if value != allowed:
            raise InvalidSettings(
                f"{name} is {value}, and so far nothing of that goes with a model that reads {what_is_read(config)} "
                f"({config.model_type}); set it to {allowed}"
            )


def check_passes(config: Any, settings: EngineSettings) -> None:
    """Raise InvalidSettings where an image that is computed in one pass may find no room beside others' next tokens."""
    if not images_are_whole(config):
        return
    num_rows = config.mm_tokens_per_image
    least = num_rows + settings.max_num_seqs * (1 + settings.max_draft_tokens)
    if settings.max_num_batched_tokens < least:
        raise InvalidSettings(
            f"max_num_batched_tokens is {settings.max_num_batched_tokens}; set it to {least} or more: "
            f"{config.model_type} computes an image's {num_rows} tokens in one pass, beside all other sequences"
        )


def check_weights(config: Any, settings: EngineSettings) -> None:
    """Raise InvalidSettings for weights that are not compared with transformers' where a model reads images."""
    if settings.load_format == "sharded_state":
        raise InvalidSettings(
            f"load_format is sharded_state, and {config.model_type} reads {what_is_read(config)}, of which no shards "
            "are kept; set auto"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise InvalidSettings(
            f"config.json says that the weights are quantized, and {config.model_type} reads {what_is_read(config)}, "
            "which is not combined; use the model's plain weights"
        )


def what_is_read(config: Any) -> str:
    """Return what the encoder of such a model reads, for messages."""
    return (family_of(config) or VisionFamily(_one_picture)).noun.several


def image_merge(config: Any) -> int:
    """Return how many patches along an axis make one row, where positions have three axes; 0 = they have one."""
    family = family_of(config)
    return int(config.vision_config.spatial_merge_size) if family is not None and family.has_grids else 0


def images_are_whole(config: Any) -> bool:
    """Return whether an image's tokens see each other, those behind them too."""
    family = family_of(config)
    return family is not None and family.is_whole


def num_deep(config: Any) -> int:
    """Return behind how many layers of the language model rows of an image are added, beside those it begins with."""
    return len(getattr(getattr(config, "vision_config", None), "deepstack_visual_indexes", ()))


def max_image_rows(config: Any, settings: EngineSettings, max_model_len: int) -> int:
    """Return how many rows are kept of encoded images, and are most of one: no more than an image that is profiled."""
    family = family_of(config)
    if family is None:
        return 0
    most = MOST_PATCHED_ROWS if family.has_grids else max(settings.max_num_batched_tokens, MOST_ROWS)
    return min(max_model_len, most)
