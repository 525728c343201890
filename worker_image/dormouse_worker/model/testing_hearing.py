"""A tiny model that hears, and sounds as its processor leaves them. For tests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from dormouse_worker.model.testing_vision_families import IMAGE, TEXT, Picture, VisionCase

MELS, POSITIONS = 8, 50
LENGTHS = (97, 42, 100)  # in frames, of which the encoder takes 100; by seed


def draw_sound(generator: torch.Generator, seed: int) -> Picture:
    """Return a sound; seeds choose content and length."""
    num_frames = LENGTHS[seed % len(LENGTHS)]
    mask = (torch.arange(2 * POSITIONS) < num_frames).int()[None]
    features = torch.randn(1, MELS, 2 * POSITIONS, generator=generator)
    num_rows = ((num_frames - 1) // 2 - 1) // 2 + 1
    return Picture({"input_features": features, "feature_attention_mask": mask}, (num_rows,))


_ENCODER: Mapping[str, float] = MappingProxyType(
    {
        "num_mel_bins": MELS,
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "max_source_positions": POSITIONS,
        "initializer_range": 0.3,
    }
)
HEARING: Mapping[str, VisionCase] = MappingProxyType(
    {
        "qwen2_audio": VisionCase(
            {"audio_token_index": IMAGE}, draw_sound, {**TEXT, "model_type": "qwen2"}, _ENCODER, encoder="audio_config"
        )
    }
)
