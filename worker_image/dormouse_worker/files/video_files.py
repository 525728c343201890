"""What a model that sees videos needs of their frames, from its files alone. Knows no torch and no transformers.

A kind that is not in this table sees no videos, and they are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.json_files import read_object

_FILES = ("video_preprocessor_config.json", "preprocessor_config.json")  # the first that is there
_OF_EACH = frozenset({"min_pixels", "max_pixels"})
_SETTINGS = _OF_EACH | {
    *("do_convert_rgb", "do_normalize", "do_rescale", "do_resize", "image_mean", "image_std", "merge_size"),
    *("patch_size", "resample", "rescale_factor", "size", "temporal_patch_size"),
    *("cap_pixels_per_frame", "max_video_tokens"),
}
_MAX_STEP = 16  # frames
_USUAL_SPEED = 4  # steps of time in a second, where config.json says nothing


@dataclass(frozen=True, slots=True)
class _Film:
    """How one kind of model sees videos."""

    settings: Mapping[str, Any]  # where its files do not say them
    is_budgeted: bool = False  # the pixels of all frames have a limit together, and not those of each
    is_timed: bool = False  # a step stands behind its time, in words
    has_speed: bool = False  # steps are as far apart as their time says, and not 1


_QWEN2 = {"size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}}
_QWEN3 = {
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
    "patch_size": 16,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
_FILMS: Mapping[str, _Film] = {
    "qwen2_vl": _Film(_QWEN2),
    "qwen2_5_vl": _Film(_QWEN2, has_speed=True),
    "qwen3_vl": _Film(_QWEN3, is_budgeted=True, is_timed=True),
    "qwen3_vl_moe": _Film(_QWEN3, is_budgeted=True, is_timed=True),
}
TOKENS: Mapping[str, str] = {
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}


@dataclass(frozen=True, slots=True)
class VideoSpec:
    """What becomes of a video's frames. Some of them together are a step in time, and are encoded as an image is."""

    token_id: int  # each stands for one row of the encoder
    tokens: Mapping[str, str]  # of TOKENS
    settings: Mapping[str, Any]  # of its processor
    is_budgeted: bool = False
    is_timed: bool = False
    speed: float | None = None  # how far apart in their positions steps are that are a second apart; None = all are 1

    @property
    def marker(self) -> str:
        """Return what the model's template says where a video goes; it also stands for one row."""
        return self.tokens["video_token"]

    @property
    def step(self) -> int:
        """Return how many frames are one step."""
        return int(self.settings["temporal_patch_size"])


def read_video(path: Path, config: Mapping[str, Any], tokens: Mapping[str, str]) -> VideoSpec | None:
    """Return how the model sees videos, None if it sees none. Raises ModelInvalid."""
    film = _FILMS.get(str(config.get("model_type", "")))
    token_id = config.get("video_token_id")
    told = _told(path)
    if film is None or not isinstance(token_id, int) or not told:
        return None
    known = _SETTINGS - _OF_EACH if film.is_budgeted else _SETTINGS
    settings = {"temporal_patch_size": 2, **film.settings, **{name: told[name] for name in known & told.keys()}}
    step = settings["temporal_patch_size"]
    if not isinstance(step, int) or not 1 <= step <= _MAX_STEP:
        raise ModelInvalid(f"{path}: temporal_patch_size is {str(step)[:80]!r}; known are 1 to {_MAX_STEP}")
    speed = config["vision_config"].get("tokens_per_second", _USUAL_SPEED) if film.has_speed else None
    if speed is not None and not isinstance(speed, int | float):
        raise ModelInvalid(f"{path / 'config.json'}: tokens_per_second is no number; copy the model again")
    return VideoSpec(token_id, tokens, settings, film.is_budgeted, film.is_timed, speed)


def _told(path: Path) -> Mapping[str, Any]:
    """Return what the model's files say of its video processor, in the order in which transformers asks them."""
    nested = read_object(path / "processor_config.json").get("video_processor")
    if isinstance(nested, Mapping):
        return nested
    return next((told for told in (read_object(path / name) for name in _FILES) if told), {})
