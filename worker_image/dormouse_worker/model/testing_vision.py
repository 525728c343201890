"""Tiny models that read images, with random weights, and what transformers says of images and prompts. For tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers import AutoConfig, AutoModelForImageTextToText

from dormouse_worker.common.images import ImageInput
from dormouse_worker.model.testing import EOS, write_tiny_tokenizer
from dormouse_worker.model.testing_vision_families import CASES, IMAGE, Picture


def write_tiny_vision_model(directory: Path, family: str, *, seed: int = 0, **text: Any) -> Path:
    """Write config, safetensors and a tokenizer; return the directory. `text` replaces fields of the text model."""
    torch.manual_seed(seed)
    case = CASES[family]
    config = AutoConfig.for_model(
        case.model_type or family, text_config={**case.text, **text}, vision_config=dict(case.vision), **case.fields
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
    return CASES[family].draw(torch.Generator().manual_seed(seed), seed)


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


def _joined(pictures: Sequence[Picture]) -> dict[str, torch.Tensor]:
    """Return what a processor makes of several images: smaller ones are padded with zeros."""
    dim = pictures[0].tile_dim
    arguments: dict[str, torch.Tensor] = {}
    for name in pictures[0].tensors:
        tensors = [picture.tensors[name] for picture in pictures]
        shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
        padded = []
        for tensor in tensors:
            wanted = [size if axis != dim else tensor.shape[dim] for axis, size in enumerate(shape)]
            whole = tensor.new_zeros(wanted)
            whole[tuple(map(slice, tensor.shape))] = tensor
            padded.append(whole)
        arguments[name] = torch.cat(padded, dim)
    return arguments


def reference_vision(directory: Path, parts: Sequence[list[int] | Picture], folder: Path, max_tokens: int) -> list[int]:
    """Return what transformers' own greedy `generate` says after the prompt, in float32."""
    model: Any = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)  # nosec B615
    model.eval()
    tokens, _ = build_prompt(parts, folder)
    pictures = [part for part in parts if isinstance(part, Picture)]
    arguments = _joined(pictures) if pictures else {}
    is_image = (torch.tensor([tokens]) == IMAGE).long()
    if pictures and pictures[0].grid is not None:
        arguments["mm_token_type_ids"] = is_image
    if model.config.model_type == "gemma3":
        arguments["token_type_ids"] = is_image
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
