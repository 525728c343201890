"""The language model inside one that reads images, as if it stood alone: our decoders compute it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dormouse_worker.model.vision.families import family_of


class TextPart(nn.Module):
    """Shares the modules of a bigger one; named as the class that transformers has for the language model alone."""

    def __init__(self, module: Any, text: Any) -> None:
        super().__init__()
        self.model = text
        self.lm_head = module.lm_head
        self.stands_for = f"{type(text).__name__.removesuffix('Model')}ForCausalLM"


@torch.inference_mode()
def text_logits(
    module: Any, arguments: Mapping[str, Any], rows: torch.Tensor, deep: torch.Tensor | None = None
) -> torch.Tensor:
    """Return logits [len(rows), V] of transformers' language model, `deep` [D, T, H] added behind its first layers."""
    more = {} if deep is None else {"visual_pos_masks": _everywhere(deep), "deepstack_visual_embeds": list(deep)}
    text = module.model.language_model(**arguments, **more)
    logits: torch.Tensor = module.lm_head(text.last_hidden_state[0, rows])
    return logits


def _everywhere(deep: torch.Tensor) -> torch.Tensor:
    return torch.ones(1, deep.shape[1], dtype=torch.bool, device=deep.device)


def text_part(module: Any) -> Any:
    """Return what computes text in a module: itself where it reads no images."""
    family = family_of(module.config)
    return module if family is None else TextPart(module, module.model.get_submodule(family.text))


def stands_for(module: Any) -> str:
    """Return the name of transformers' class that computes as the module does."""
    return module.stands_for if isinstance(module, TextPart) else type(module).__name__
