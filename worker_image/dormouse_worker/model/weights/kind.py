"""Which of transformers' classes a model is made with, and whose function its attention calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM

from dormouse_worker.model.attention.hook import register


@dataclass(frozen=True, slots=True)
class ModelKind:
    """What decides which tensors a model has."""

    auto_class: Any = AutoModelForCausalLM
    register: Callable[[], str | dict[str, str]] = register  # makes the attention known; returns whose is which
    options: Mapping[str, Any] = field(default_factory=dict)  # of the class's constructor
    rounds: Callable[[str], bool] | None = None  # which maps, by their path, may have fewer bits; None = no model's


def _register_text() -> dict[str, str]:
    """Let the language model alone read the paged cache; images and sound are computed as transformers does."""
    return {"text_config": register(), "vision_config": "sdpa", "audio_config": "sdpa"}


GENERATES = ModelKind(rounds=lambda _: True)
SEES = ModelKind(AutoModelForMultimodalLM, _register_text)  # it generates, too
