"""The models that read images, by `model_type`: what of them is the language model, and what their encoders take.

Who adds one adds it to the tests of `tests/worker/model/vision/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import NONE, EngineSettings

Tensors = Mapping[str, torch.Tensor]
MOST_ROWS = 8192  # of encoded images, where longer passes do not need more


@dataclass(frozen=True, slots=True)
class VisionFamily:
    """Models whose images are computed exactly as transformers does."""

    text: str  # the language model's name within `module.model`
    largest: Callable[[Any], Tensors]  # of a configuration: what its processor makes of the largest image
    optional: frozenset[str] = frozenset()  # tensors that an image may have besides those


def _one_picture(config: Any) -> Tensors:
    size = config.vision_config.image_size
    return {"pixel_values": torch.ones(1, config.vision_config.num_channels, size, size)}


FAMILIES: Mapping[str, VisionFamily] = {
    "llava": VisionFamily("language_model", _one_picture),
}


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
                f"{name} is {value}, and so far nothing of that goes with a model that reads images "
                f"({config.model_type}); set it to {allowed}"
            )


def max_image_rows(settings: EngineSettings, max_model_len: int) -> int:
    """Return how many rows are kept of encoded images: any image that fits a prompt, within bounds."""
    return min(max_model_len, max(settings.max_num_batched_tokens, MOST_ROWS))
