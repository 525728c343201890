"""A sound of a prompt as its model's encoder takes it: features of a whole window, and how many of them are no silence.

The tensors are those of transformers' `WhisperFeatureExtractor` with `padding="max_length"`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dormouse_worker.sounds.decoding import BadSound, Samples, SoundLimits, open_sound, seconds_of_samples
from dormouse_worker.sounds.features import HOP_SAMPLES, log_mels, scale
from dormouse_worker.sounds.resampling import Resampler


@dataclass(frozen=True, slots=True)
class Clips:
    """How one model hears sounds of prompts."""

    num_mels: int
    window_frames: int  # what the encoder takes at once, and no sound is longer
    least_frames: int  # that make a row
    limits: SoundLimits

    def run(self, source: Path, target: Path) -> str:
        """Decode one file, write its tensors; return what is told of them as JSON. Raises BadSound."""
        samples = self._decode(source)
        num_frames = -(-len(samples) // HOP_SAMPLES)
        padded = np.pad(samples, (0, self.window_frames * HOP_SAMPLES - len(samples)))
        features = np.concatenate(list(log_mels(padded, self.num_mels)))
        scale(features, features.max())
        tensors = {
            "input_features": np.ascontiguousarray(features.T[None]),
            "feature_attention_mask": (np.arange(self.window_frames) < num_frames).astype(np.int32)[None],
        }
        self._save(tensors, target)
        shapes = {name: array.shape for name, array in tensors.items()}
        told = {"digest": self._digest(samples), "shapes": shapes, "values": {"num_frames": num_frames}}
        return json.dumps(told | {"num_bytes": target.stat().st_size})

    def _decode(self, source: Path) -> Samples:
        """Return all samples at 16 kHz."""
        with open_sound(source, self.limits) as opened:
            pieces = list(Resampler(opened.samplerate).run(seconds_of_samples(opened, self.limits)))
        samples = np.concatenate([np.zeros(0, np.float32), *pieces])[: self.window_frames * HOP_SAMPLES]
        if (least := (self.least_frames - 1) * HOP_SAMPLES + 1) > len(samples):
            raise BadSound(f"it has {len(samples)} samples at 16 kHz; allowed: at least {least}")
        return samples

    def _digest(self, samples: Samples) -> str:
        key = f"{self.num_mels} {self.window_frames} {len(samples)} ".encode()
        return hashlib.sha256(key + samples.tobytes()).hexdigest()

    def _save(self, tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]], target: Path) -> None:
        from safetensors.numpy import save  # sounds of transcriptions need none

        try:
            target.write_bytes(save(tensors))
        except OSError as error:
            target.unlink(missing_ok=True)
            limit = "see --image-cache-bytes"
            raise BadSound(f"its tensors do not fit the memory for them ({error.strerror}); {limit}") from error
