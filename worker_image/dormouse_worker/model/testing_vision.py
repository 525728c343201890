"""Tiny models that read images, with random weights, and what transformers says of images and prompts. For tests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save
from transformers import AutoConfig, AutoModelForImageTextToText

from dormouse_worker.common.images import ImageInput
from dormouse_worker.model.testing import BOS, EOS, VOCAB_SIZE, write_tiny_tokenizer

IMAGE = VOCAB_SIZE  # the placeholder's id
MAX_POSITIONS = 192
_TEXT: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE + 4,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": None,
    }
)
_CLIP: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 4,
        "initializer_range": 0.3,
    }
)


@dataclass(frozen=True)
class Picture:
    """One image as a processor leaves it, and how many tokens each of its runs takes."""

    tensors: Mapping[str, torch.Tensor]
    runs: tuple[int, ...]
    grid: tuple[int, int, int] | None = None

    @property
    def num_between(self) -> int:
        """Return how many tokens stand behind its runs."""
        return len(self.runs) if len(self.runs) > 1 else 0

    @property
    def digest(self) -> bytes:
        """Return its name."""
        return hashlib.sha256(save({name: tensor.contiguous() for name, tensor in self.tensors.items()})).digest()


@dataclass(frozen=True)
class VisionCase:
    """A family's tiny configuration."""

    fields: Mapping[str, Any]
    text: Mapping[str, Any] = field(default_factory=dict)
    vision: Mapping[str, Any] = field(default_factory=dict)
    is_lean: bool = True  # whether our own decoders compute its language model


CASES: Mapping[str, VisionCase] = MappingProxyType(
    {
        "llava": VisionCase(
            {"image_token_index": IMAGE, "image_seq_length": 16, "vision_feature_layer": -1}, _TEXT, _CLIP
        ),
    }
)


def write_tiny_vision_model(directory: Path, family: str, *, seed: int = 0, **text: Any) -> Path:
    """Write config, safetensors and a tokenizer; return the directory. `text` replaces fields of the text model."""
    torch.manual_seed(seed)
    case = CASES[family]
    config = AutoConfig.for_model(
        family, text_config={**case.text, **text}, vision_config=dict(case.vision), **case.fields
    )
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = EOS
    model.save_pretrained(directory)
    write_tiny_tokenizer(directory)
    return directory


def draw_picture(family: str, seed: int) -> Picture:
    """Return an image of the family; seeds choose content and size."""
    generator = torch.Generator().manual_seed(seed)
    return _DRAWERS[family](generator, seed)


def _draw_square(generator: torch.Generator, seed: int) -> Picture:
    del seed
    return Picture({"pixel_values": torch.randn(1, 3, 16, 16, generator=generator)}, (16,))


_DRAWERS = {"llava": _draw_square}


def build_prompt(parts: Sequence[list[int] | Picture], folder: Path) -> tuple[list[int], list[ImageInput]]:
    """Return a prompt's tokens, placeholders in the place of pictures, and its images, whose files are written."""
    tokens: list[int] = []
    images: list[ImageInput] = []
    for part in parts:
        if not isinstance(part, Picture):
            tokens += part
            continue
        spans = []
        for count in part.runs:
            spans.append((len(tokens), count))
            tokens += [IMAGE] * count
            if len(part.runs) > 1:
                tokens.append(7)  # what stands between tiles
        contents = save({name: tensor.contiguous() for name, tensor in part.tensors.items()})
        path = folder / f"{part.digest.hex()[:16]}.safetensors"
        path.write_bytes(contents)
        images.append(ImageInput(part.digest, spans, path.name, len(contents), part.grid))
    return tokens, images


def reference_vision(directory: Path, parts: Sequence[list[int] | Picture], folder: Path, max_tokens: int) -> list[int]:
    """Return what transformers' own greedy `generate` says after the prompt, in float32."""
    model: Any = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)  # nosec B615
    model.eval()
    tokens, _ = build_prompt(parts, folder)
    pictures = [part for part in parts if isinstance(part, Picture)]
    names = pictures[0].tensors if pictures else ()
    arguments = {name: torch.cat([picture.tensors[name] for picture in pictures]) for name in names}
    generated = model.generate(
        torch.tensor([tokens]),
        attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=None,
        pad_token_id=EOS,
        **arguments,
    )
    answer: list[int] = generated[0, len(tokens) :].tolist()
    return answer
