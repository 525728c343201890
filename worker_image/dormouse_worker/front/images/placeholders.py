"""What stands in a prompt for an image, by the kind of model, and where its rows are among the tokens. Pure.

The texts are those of transformers' processors (`replace_image_token` of each).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dormouse_worker.files.vision_files import VisionSpec

Span = tuple[int, int]  # the first token and how many
_MOST_OVER = 1.1  # LLaVA-OneVision: an image with so much more rows and columns than it may have is made smaller


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What a processor made of one image: the shapes of its tensors, and what its few integers say."""

    shapes: Mapping[str, Sequence[int]]
    values: Mapping[str, Any] = field(default_factory=dict)  # flat lists

    @property
    def grid(self) -> tuple[int, int, int] | None:
        """Return the patches in time, height and width, of models whose positions are 3-D."""
        grid = self.values.get("image_grid_thw")
        return None if grid is None else (grid[0], grid[1], grid[2])


class Said(NamedTuple):
    """What stands in the text for each image, video or sound."""

    kind: str  # in the plural
    each: Sequence[str]


class WrongCount(ValueError):
    """The text does not have one place for each image."""


def expand(text: str, spec: VisionSpec, images: Sequence[ImageFacts], films: Sequence[str] = ()) -> str:
    """Return the text with each marker replaced by what stands for its image, or its video. Raises WrongCount."""
    said = {spec.marker: Said("images", [_KINDS[spec.kind](spec, image) for image in images])}
    if spec.video is not None:
        said[spec.video.marker] = Said("videos", films)
    return fill(text, said)


def fill(text: str, said: Mapping[str, Said]) -> str:
    """Return the text with each marker replaced by what is said for it, in order. Raises WrongCount."""
    for marker, (kind, each) in said.items():
        if (count := text.count(marker)) != len(each):
            raise WrongCount(f"{count} places of {marker} for {len(each)} {kind}")
    left = {marker: iter(of_kind.each) for marker, of_kind in said.items()}
    return re.sub("|".join(map(re.escape, said)), lambda found: next(left[found[0]]), text)


def find_spans(token_ids: Sequence[int], spec: VisionSpec, images: Sequence[ImageFacts]) -> list[list[Span]]:
    """Return where each image's rows stand. Raises WrongCount where tokens and rows do not agree."""
    rows = [_KINDS[spec.kind](spec, image).count(spec.image_token) for image in images]
    return spans_of(token_ids, spec.image_token_id, rows, "images")


def spans_of(token_ids: Sequence[int], row_id: int, rows: Sequence[int], kind: str) -> list[list[Span]]:
    """Return where the rows of each stand, one behind the other. Raises WrongCount."""
    places = [place for place, token_id in enumerate(token_ids) if token_id == row_id]
    if len(places) != sum(rows):
        raise WrongCount(f"{len(places)} tokens of {kind} for {sum(rows)} rows of {len(rows)} {kind}")
    spans, start = [], 0
    for num_rows in rows:
        spans.append(runs_of(places[start : start + num_rows]))
        start += num_rows
    return spans


def runs_of(places: Sequence[int]) -> list[Span]:
    """Return ascending places as runs without gaps."""
    runs: list[Span] = []
    for place in places:
        if runs and sum(runs[-1]) == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs


def _llava(spec: VisionSpec, image: ImageFacts) -> str:
    height, width = image.shapes["pixel_values"][-2:]
    size, more = spec.numbers["patch_size"], spec.numbers["num_additional_image_tokens"]
    return spec.image_token * ((height // size) * (width // size) + more - (spec.strategy == "default"))


def _llava_next(spec: VisionSpec, image: ImageFacts) -> str:
    height, width = image.values["image_sizes"]
    tile_height, tile_width = image.shapes["pixel_values"][-2:]
    size, more = spec.numbers["patch_size"], spec.numbers["num_additional_image_tokens"]
    rows, cols = tile_height // size, tile_width // size
    best_height, best_width = best_resolution(height, width, spec.settings["image_grid_pinpoints"])
    seen = _unpadded(height, width, rows * (best_height // tile_height), cols * (best_width // tile_width))
    return spec.image_token * (_with_line_ends(*seen) + rows * cols + more - (spec.strategy == "default"))


def _llava_onevision(spec: VisionSpec, image: ImageFacts) -> str:
    whole = spec.numbers["num_image_tokens"]
    if image.values["batch_num_images"] == [1]:
        count = whole + _with_line_ends(*_tiles_of_onevision(spec, image, math.isqrt(whole)))
    else:  # one of several is not cut into tiles
        count = whole + 1
    return spec.image_token * (count - (spec.strategy == "default"))


def _tiles_of_onevision(spec: VisionSpec, image: ImageFacts, side: int) -> tuple[int, int]:
    """Return rows and columns of an image's tiles, `side` each; made fewer where there are too many."""
    height, width = image.values["image_sizes"]
    tile_height, tile_width = image.shapes["pixel_values"][-2:]
    best_height, best_width = best_resolution(height, width, spec.settings["image_grid_pinpoints"])
    rows, cols = _unpadded(height, width, side * (best_height // tile_height), side * (best_width // tile_width))
    ratio = math.sqrt(rows * cols / (spec.max_tiles * side**2))
    return (int(rows // ratio), int(cols // ratio)) if ratio > _MOST_OVER else (rows, cols)


def _with_line_ends(rows: int, cols: int) -> int:
    return rows * (cols + 1)


def _unpadded(height: int, width: int, rows: int, cols: int) -> tuple[int, int]:
    """Return the rows and columns of tiles without those that were only padding."""
    if width / height > cols / rows:
        used = round(height * (cols / width), 7)
        rows -= (rows - int(used)) // 2 * 2
    else:
        used = round(width * (rows / height), 7)
        cols -= (cols - int(used)) // 2 * 2
    return rows, cols


def best_resolution(height: int, width: int, known: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return which size of tiles fits an image: most of it is seen, and then least is wasted."""

    def fitness(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[1] / width, size[0] / height)
        seen = min(int(width * scale) * int(height * scale), width * height)
        return seen, seen - size[0] * size[1]

    best = max(known, key=fitness)
    return best[0], best[1]


def _tiles(spec: VisionSpec, image: ImageFacts) -> str:
    (rows,), (cols,) = image.values["rows"], image.values["cols"]
    fake, seen = spec.tokens["fake_image_token"], spec.image_token * spec.numbers["image_seq_len"]
    whole = f"{fake}{spec.tokens['global_image_token']}{seen}{fake}"
    if not rows and not cols:
        return whole
    lines = ("".join(f"{fake}<row_{row}_col_{col}>{seen}" for col in range(1, cols + 1)) for row in range(1, rows + 1))
    return "".join(f"{line}\n" for line in lines) + f"\n{whole}"


def _qwen(spec: VisionSpec, image: ImageFacts) -> str:
    time, height, width = image.grid or (0, 0, 0)
    merge_size = int(spec.settings.get("merge_size", 2))
    return spec.image_token * (time * height * width // merge_size**2)


def _gemma3(spec: VisionSpec, image: ImageFacts) -> str:
    seen = spec.image_token * spec.numbers["image_seq_length"]
    whole = f"\n\n{spec.tokens['boi_token']}{seen}{spec.tokens['eoi_token']}\n\n"
    (num_crops,) = image.values["num_crops"]
    if not num_crops:
        return whole
    crops = " ".join([whole] * num_crops)
    return f"Here is the original image {whole} and here are some crops to help you see better {crops}"


def _internvl(spec: VisionSpec, image: ImageFacts) -> str:
    (num_patches,) = image.values["num_patches"]
    seen = spec.image_token * (spec.numbers["image_seq_length"] * num_patches)
    return f"{spec.tokens['start_image_token']}{seen}{spec.tokens['end_image_token']}"


def _aya(spec: VisionSpec, image: ImageFacts) -> str:
    (num_tiles,) = image.values["num_patches"]
    size = spec.numbers["patch_size"] * spec.numbers["downsample_factor"]
    seen = spec.image_token * (spec.numbers["img_size"] // size) ** 2
    tiles = "".join(f"{spec.tokens['tile_token']}_{tile}{seen}" for tile in range(1, num_tiles))
    whole = f"{spec.tokens['tile_global_token']}{seen}"
    return f"{spec.tokens['start_of_img_token']}{tiles}{whole}{spec.tokens['end_of_img_token']}"


def _pixtral(spec: VisionSpec, image: ImageFacts) -> str:
    height, width = image.values["image_sizes"]
    size = spec.arguments["patch_size"]
    line = spec.image_token * (width // size)
    return spec.tokens["image_break_token"].join([line] * (height // size)) + spec.tokens["image_end_token"]


_KINDS: Mapping[str, Callable[[VisionSpec, ImageFacts], str]] = {
    "llava": _llava,
    "vipllava": _llava,
    "aya_vision": _aya,
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
    "idefics3": _tiles,
    "smolvlm": _tiles,
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "gemma3": _gemma3,
    "internvl": _internvl,
    "pixtral": _pixtral,
    "mistral3": _pixtral,
}
