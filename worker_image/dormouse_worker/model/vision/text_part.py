"""The language model inside one that reads images, as if it stood alone: our decoders compute it, too."""

from __future__ import annotations

from typing import Any

from torch import nn

from dormouse_worker.model.vision.families import family_of


class TextPart(nn.Module):
    """Shares the modules of a bigger one; named as the class that transformers has for the language model alone."""

    def __init__(self, module: Any, text: Any) -> None:
        super().__init__()
        self.model = text
        self.lm_head = module.lm_head
        self.stands_for = f"{type(text).__name__.removesuffix('Model')}ForCausalLM"


def text_part(module: Any) -> Any:
    """Return what computes text in a module: itself where it reads no images."""
    family = family_of(module.config)
    return module if family is None else TextPart(module, module.model.get_submodule(family.text))


def stands_for(module: Any) -> str:
    """Return the name of transformers' class that computes as the module does."""
    return module.stands_for if isinstance(module, TextPart) else type(module).__name__
