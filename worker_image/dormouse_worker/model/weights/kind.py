"""Which of transformers' classes a model is made with, and whose function its attention calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoModelForCausalLM

from dormouse_worker.model.attention.hook import register


@dataclass(frozen=True, slots=True)
class ModelKind:
    """What decides which tensors a model has."""

    auto_class: Any = AutoModelForCausalLM
    register: Callable[[], str] = register  # makes the attention known; returns its name
    options: Mapping[str, Any] = field(default_factory=dict)  # of the class's constructor


GENERATES = ModelKind()
