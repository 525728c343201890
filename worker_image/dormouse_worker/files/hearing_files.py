"""What a model that takes sounds in its prompt needs of them, from its files alone. Knows no torch and no transformers.

A kind that is not in this table hears nothing, and sounds are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.json_files import read_object
from dormouse_worker.files.speech_files import FRAMES_A_POSITION, FRAMES_A_SECOND, check_features
from dormouse_worker.files.vision_files import named_token

QWEN2_AUDIO = "qwen2_audio"
_TOKEN, _TOKEN_ID = "<|AUDIO|>", 151_646  # where its files do not say them
_NUM_MELS, _NUM_POSITIONS = 128, 1500
_LEAST_FRAMES = 3  # that make a row
_PROCESSOR, _TOKENIZER = "processor_config.json", "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class HearingSpec:
    """What becomes of a sound: features of a whole window, of which two make a position, and two of these a row."""

    token_id: int  # each stands for one row of the encoder
    marker: str  # what the model's template says where a sound goes; it also stands for one row
    num_mels: int
    window_frames: int  # of features: what the encoder takes at once, and the most of one sound
    least_frames: int = _LEAST_FRAMES

    @property
    def max_seconds(self) -> float:
        """Return how long a sound may be."""
        return self.window_frames / FRAMES_A_SECOND

    def num_rows(self, num_frames: int) -> int:
        """Return how many rows the encoder makes of a sound."""
        num_positions = (num_frames - 1) // FRAMES_A_POSITION + 1
        return (num_positions - 2) // 2 + 1


def read_hearing(path: Path, config: Mapping[str, Any]) -> HearingSpec | None:
    """Return how the model hears, None if it does not, or in a way that is not known here. Raises ModelInvalid."""
    audio = config.get("audio_config")
    if config.get("model_type") != QWEN2_AUDIO or not isinstance(audio, Mapping):
        return None
    token_id = config.get("audio_token_index", config.get("audio_token_id", _TOKEN_ID))
    num_mels, num_positions = audio.get("num_mel_bins", _NUM_MELS), audio.get("max_source_positions", _NUM_POSITIONS)
    for name, number in (
        ("audio_token_index", token_id),
        ("num_mel_bins", num_mels),
        ("max_source_positions", num_positions),
    ):
        if not isinstance(number, int) or number < 1:
            raise ModelInvalid(f"{path / 'config.json'}: {name} is {str(number)[:80]!r}; a number above 0 is needed")
    spec = HearingSpec(
        token_id=token_id,
        marker=named_token("audio_token", _TOKEN, read_object(path / _PROCESSOR), read_object(path / _TOKENIZER)),
        num_mels=num_mels,
        window_frames=FRAMES_A_POSITION * num_positions,
    )
    _check_extractor(path, spec)
    return spec


def _check_extractor(path: Path, spec: HearingSpec) -> None:
    """Raise ModelInvalid where features are made in another way than here, or are not a whole window."""
    file = path / _PROCESSOR
    said = read_object(file).get("feature_extractor")
    if not isinstance(said, Mapping):
        file = path / "preprocessor_config.json"
        said = read_object(file)
    seconds = spec.window_frames // FRAMES_A_SECOND
    check_features(file, said, feature_size=spec.num_mels, chunk_length=seconds, padding_side="right", padding_value=0)
