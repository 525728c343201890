"""Tiny models that read images or sounds, with random weights, and what transformers says of prompts. For tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers import AutoConfig, AutoModelForMultimodalLM

from dormouse_worker.common.images import ImageInput
from dormouse_worker.model.testing import EOS, write_tiny_tokenizer
from dormouse_worker.model.testing_hearing import HEARING
from dormouse_worker.model.testing_reference import read_reference
from dormouse_worker.model.testing_vision_families import CASES, IMAGE, Picture

VIDEO = IMAGE + 1  # the placeholder's id
_CASES = {**CASES, **HEARING}

Part = list[int] | Picture | tuple[Picture, ...]  # the last are steps of a video


def write_tiny_vision_model(directory: Path, family: str, *, seed: int = 0, **text: Any) -> Path:
    """Write config, safetensors and a tokenizer; return the directory. `text` replaces fields of the text model."""
    torch.manual_seed(seed)
    case = _CASES[family]
    encoder = {case.encoder: dict(case.vision)}
    config = AutoConfig.for_model(
        case.model_type or family, text_config={**case.text, **text}, **encoder, **case.fields
    )
    model = AutoModelForMultimodalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = EOS
    model.save_pretrained(directory)
    write_tiny_tokenizer(directory)
    return directory


def draw_picture(family: str, seed: int) -> Picture:
    """Return an image or a sound of the family; seeds choose content and size."""
    return _CASES[family].draw(torch.Generator().manual_seed(seed), seed)


def draw_film(family: str, num_steps: int) -> tuple[Picture, ...]:
    """Return the steps of a video of the family."""
    steps = [CASES[family].draw(torch.Generator().manual_seed(step), 1) for step in range(num_steps)]
    return tuple(step for step in steps)


def build_prompt(
    parts: Sequence[Part], folder: Path, moments: Sequence[tuple[int, int]] = ()
) -> tuple[list[int], list[ImageInput]]:
    """Return a prompt's tokens, placeholders in the place of pictures, and its images, whose files are written.

    Without `moments`, which are of each step of a video, each of them stands behind a token of text.
    """
    tokens: list[int] = []
    images: list[ImageInput] = []
    for part in parts:
        if isinstance(part, list):
            tokens += part
            continue
        if isinstance(part, tuple):
            for number, step in enumerate(part):
                tokens += [] if moments else [7]
                images.append(
                    _written(step, [(len(tokens), step.runs[0])], folder, moments[number] if moments else None)
                )
                tokens += [VIDEO] * step.runs[0]
            continue
        spans = []
        for count in part.runs:
            spans.append((len(tokens), count))
            tokens += [IMAGE] * count
            if len(part.runs) > 1:
                tokens.append(7)  # what stands between tiles
        images.append(_written(part, spans, folder))
    return tokens, images


def _written(
    picture: Picture, spans: list[tuple[int, int]], folder: Path, moment: tuple[int, int] | None = None
) -> ImageInput:
    """Write what a processor made of a picture; return what the engine gets of it."""
    contents = save({name: tensor.contiguous() for name, tensor in picture.tensors.items()})
    path = folder / f"{picture.digest.hex()[:16]}.safetensors"
    path.write_bytes(contents)
    return ImageInput(picture.digest, spans, path.name, len(contents), picture.grid, moment)


def _filmed(films: Sequence[tuple[Picture, ...]], seconds: float) -> dict[str, torch.Tensor]:
    """Return what a processor makes of videos of which each step takes so many seconds."""
    pixels = torch.cat([step.tensors["pixel_values"] for film in films for step in film])
    grids = torch.tensor([[len(film), *film[0].tensors["image_grid_thw"][0, 1:].tolist()] for film in films])
    apart = torch.full((len(films),), seconds)
    return {"pixel_values_videos": pixels, "video_grid_thw": grids, "second_per_grid_ts": apart}


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


def reference_vision(
    directory: Path,
    parts: Sequence[Part],
    folder: Path,
    max_tokens: int,
    *,
    moments: Sequence[tuple[int, int]] = (),
    seconds: float = 1.0,
) -> list[int]:
    """Return what transformers' own greedy `generate` says after the prompt, in float32.

    `moments` are as in `build_prompt`; steps of a video take so many seconds each.
    """
    model = read_reference(AutoModelForMultimodalLM, directory)
    tokens, _ = build_prompt(parts, folder, moments)
    pictures = [part for part in parts if isinstance(part, Picture)]
    arguments = _joined(pictures) if pictures else {}
    is_image = (torch.tensor([tokens]) == IMAGE).long()
    if films := [part for part in parts if isinstance(part, tuple)]:
        arguments |= _filmed(films, seconds)
        if "2_5" not in model.config.model_type:
            del arguments["second_per_grid_ts"]
    if films or (pictures and pictures[0].grid is not None):
        arguments["mm_token_type_ids"] = is_image + 2 * (torch.tensor([tokens]) == VIDEO)
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
