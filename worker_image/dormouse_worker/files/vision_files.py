"""What a model that sees needs of an image, from its files alone: which processor, which tokens, how many.

Knows no torch and no transformers; the names are those of their files. A model that sees in a way that is not in this
table reads text, and its images are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.json_files import read_object
from dormouse_worker.files.video_files import TOKENS, VideoSpec, read_video

# How each kind of image processor is found: the folder of transformers and the name of its class.
PROCESSORS: Mapping[str, tuple[str, str]] = {
    "CLIPImageProcessor": ("clip", "CLIPImageProcessorPil"),
    "LlavaImageProcessor": ("llava", "LlavaImageProcessorPil"),
    "SiglipImageProcessor": ("siglip", "SiglipImageProcessorPil"),
    "Idefics3ImageProcessor": ("idefics3", "Idefics3ImageProcessorPil"),
    "SmolVLMImageProcessor": ("smolvlm", "SmolVLMImageProcessorPil"),
    "Qwen2VLImageProcessor": ("qwen2_vl", "Qwen2VLImageProcessorPil"),
    "Gemma3ImageProcessor": ("gemma3", "Gemma3ImageProcessorPil"),
    "LlavaNextImageProcessor": ("llava_next", "LlavaNextImageProcessorPil"),
    "LlavaOnevisionImageProcessor": ("llava_onevision", "LlavaOnevisionImageProcessorPil"),
    "GotOcr2ImageProcessor": ("got_ocr2", "GotOcr2ImageProcessorPil"),
    "PixtralImageProcessor": ("pixtral", "PixtralImageProcessorPil"),
}
_PROCESSOR_FILE, _IMAGE_FILE, _TOKENIZER_FILE = (
    "processor_config.json",
    "preprocessor_config.json",
    "tokenizer_config.json",
)
_SUFFIXES = ("Fast", "Pil")


@dataclass(frozen=True, slots=True)
class Family:
    """How one kind of model sees: what its processor takes besides, and where its numbers and tokens stand."""

    processor: str  # of images, where the files do not name it
    tokens: Mapping[str, str] = field(default_factory=dict)  # name → what it is where the files do not say
    numbers: Mapping[str, int | None] = field(default_factory=dict)  # of processor_config.json; None = must be there
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of each call of the image processor
    marker: str = "image_token"  # the token that a template puts where an image goes
    row: str = "image_token"  # the token that stands for one row of the encoder
    has_several: bool = False  # one image alone in a chat is processed otherwise than one of several


_IMAGE = {"image_token": "<image>"}
_TILES = _IMAGE | {"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"}
_PAN_AND_SCAN = {
    "do_convert_rgb": True,
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
_QWEN = Family("Qwen2VLImageProcessor", {"image_token": "<|image_pad|>"})
_PATCHES: Mapping[str, int | None] = {"patch_size": None, "num_additional_image_tokens": 0}
_LLAVA = Family("CLIPImageProcessor", _IMAGE, _PATCHES)
_PIXTRAL = Family(
    "PixtralImageProcessor",
    {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
    {"patch_size": 16, "spatial_merge_size": 1},
)
FAMILIES: Mapping[str, Family] = {
    "llava": _LLAVA,
    "vipllava": _LLAVA,
    "llava_next": Family("LlavaNextImageProcessor", _IMAGE, _PATCHES, {"do_pad": True}),
    "llava_onevision": Family("LlavaOnevisionImageProcessor", _IMAGE, {"num_image_tokens": None}, has_several=True),
    "idefics3": Family("Idefics3ImageProcessor", _TILES, {"image_seq_len": 169}, {"return_row_col_info": True}),
    "smolvlm": Family("SmolVLMImageProcessor", _TILES, {"image_seq_len": 169}, {"return_row_col_info": True}),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "qwen3_vl_moe": _QWEN,
    "aya_vision": Family(
        "GotOcr2ImageProcessor",
        {
            "image_token": "<image>",
            "start_of_img_token": "<|START_OF_IMG|>",
            "end_of_img_token": "<|END_OF_IMG|>",
            "img_patch_token": "<|IMG_PATCH|>",
            "tile_token": "TILE",
            "tile_global_token": "TILE_GLOBAL",
        },
        {"patch_size": 28, "img_size": 364, "downsample_factor": 1},
        {"crop_to_patches": True},
        row="img_patch_token",
    ),
    "gemma3": Family(
        "Gemma3ImageProcessor",
        {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        {"image_seq_length": 256},
        _PAN_AND_SCAN,
        marker="boi_token",
    ),
    "internvl": Family(
        "GotOcr2ImageProcessor",
        {"context_image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"},
        {"image_seq_length": 256},
        {"crop_to_patches": True},
        marker="context_image_token",
        row="context_image_token",
    ),
    "pixtral": _PIXTRAL,
    "mistral3": _PIXTRAL,
}


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """What becomes of an image."""

    kind: str  # of FAMILIES
    image_token_id: int  # each stands for one row of the encoder
    marker: str  # what the model's template says where an image goes
    processor: str  # of PROCESSORS
    settings: Mapping[str, Any]  # with which it is made
    arguments: Mapping[str, Any]  # with which it is called
    tokens: Mapping[str, str]
    numbers: Mapping[str, int]
    strategy: str = ""  # vision_feature_select_strategy, of models that have one
    max_tiles: int = 0  # rows of larger images are made fewer (vision_aspect_ratio); 0 = of none
    video: VideoSpec | None = None  # None = it sees no videos

    @property
    def image_token(self) -> str:
        """Return the token that stands for one row."""
        return self.tokens[FAMILIES[self.kind].row]

    @property
    def has_several(self) -> bool:
        """Return whether one of several images in a chat is processed otherwise than one alone."""
        return FAMILIES[self.kind].has_several


def read_vision(path: Path, config: Mapping[str, Any]) -> VisionSpec | None:
    """Return how the model sees, None if it does not, or in a way that is not known here. Raises ModelInvalid."""
    if not isinstance(config.get("vision_config"), Mapping):
        return None
    processor = read_object(path / _PROCESSOR_FILE)
    kind = _kind(config, processor)
    if kind not in FAMILIES:
        return None
    family, tokenizer = FAMILIES[kind], read_object(path / _TOKENIZER_FILE)
    settings = dict(processor.get("image_processor") or read_object(path / _IMAGE_FILE))
    if not settings:
        raise ModelInvalid(
            f"{path}: neither {_PROCESSOR_FILE} nor {_IMAGE_FILE} tells how images are processed; copy them"
        )
    image_token_id = config.get("image_token_id", config.get("image_token_index"))
    if not isinstance(image_token_id, int):
        raise ModelInvalid(f"{path / 'config.json'}: image_token_id is missing; copy the model again")
    numbers = {name: _number(path, name, default, processor, config) for name, default in family.numbers.items()}
    tokens = {name: named_token(name, default, processor, tokenizer) for name, default in family.tokens.items()}
    arguments = dict(family.arguments)
    if family is _PIXTRAL:
        arguments["patch_size"] = numbers["patch_size"] * numbers["spatial_merge_size"]
    strategy = processor.get("vision_feature_select_strategy") or config.get("vision_feature_select_strategy") or ""
    return VisionSpec(
        kind=kind,
        image_token_id=image_token_id,
        marker=tokens[family.marker],
        processor=_processor(path, settings, family),
        settings=settings,
        arguments=arguments,
        tokens=tokens,
        numbers=numbers,
        strategy=str(strategy),
        max_tiles=_max_tiles(path, processor) if family.has_several else 0,
        video=read_video(
            path, config, {name: named_token(name, usual, processor, tokenizer) for name, usual in TOKENS.items()}
        ),
    )


def _kind(config: Mapping[str, Any], processor: Mapping[str, Any]) -> str:
    """Return the model's kind; Pixtral is a LLaVA with another encoder."""
    kind = str(config.get("model_type", ""))
    is_pixtral = (
        config["vision_config"].get("model_type") == "pixtral" or processor.get("processor_class") == "PixtralProcessor"
    )
    return "pixtral" if kind == "llava" and is_pixtral else kind


def _processor(path: Path, settings: Mapping[str, Any], family: Family) -> str:
    name = str(settings.get("image_processor_type") or settings.get("feature_extractor_type") or family.processor)
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    if name not in PROCESSORS:
        raise ModelInvalid(f"{path}: image_processor_type is {name[:80]!r}; known are {', '.join(sorted(PROCESSORS))}")
    return name


def _number(path: Path, name: str, default: int | None, processor: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    number = processor.get(name, default)
    if number is None:  # transformers has no default; older files say it of the encoder
        number = config["vision_config"].get(name)
    if not isinstance(number, int):
        raise ModelInvalid(f"{path / _PROCESSOR_FILE}: {name} is missing, or no number; copy the model again")
    return number


def _max_tiles(path: Path, processor: Mapping[str, Any]) -> int:
    said = str(processor.get("vision_aspect_ratio", "anyres_max_9"))
    found = re.fullmatch(r"anyres_max_([1-9]\d{0,3})", said)
    if found is None:
        raise ModelInvalid(
            f"{path / _PROCESSOR_FILE}: vision_aspect_ratio is {said[:80]!r}; known is anyres_max_NUMBER"
        )
    return int(found[1])


def named_token(name: str, default: str, processor: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> str:
    """Return a token by its name: of the tokenizer, which transformers asks first, else of the processor."""
    extra = tokenizer.get("extra_special_tokens")
    places = (
        tokenizer,
        extra if isinstance(extra, Mapping) else {},
        tokenizer.get("model_specific_special_tokens") or {},
        processor,
    )
    for place in places:
        value = place.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str) and value:
            return value
    return default
