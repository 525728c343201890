"""Families of tiny models that read images: configurations, and images as their processors leave them. For tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save

from dormouse_worker.model.testing import BOS, EOS, VOCAB_SIZE

IMAGE = VOCAB_SIZE  # the placeholder's id
MAX_POSITIONS = 256
TEXT: Mapping[str, Any] = MappingProxyType(
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
    tile_dim: int = 0  # along which processors join the images of a prompt

    @property
    def num_between(self) -> int:
        """Return how many tokens stand behind its runs."""
        return len(self.runs) if len(self.runs) > 1 else 0

    @property
    def digest(self) -> bytes:
        """Return its name."""
        return hashlib.sha256(save({name: tensor.contiguous() for name, tensor in self.tensors.items()})).digest()


Drawer = Callable[[torch.Generator, int], Picture]


@dataclass(frozen=True)
class VisionCase:
    """A family's tiny configuration."""

    fields: Mapping[str, Any]
    draw: Drawer
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    is_lean: bool = True  # whether our own decoders compute its language model
    model_type: str = ""  # "" = the case's name
    is_whole: bool = False  # whether an image's tokens see each other
    encoder: str = "vision_config"


_LAST: Mapping[str, Any] = MappingProxyType({"vision_feature_layer": -1})
_SIGLIP: Mapping[str, Any] = MappingProxyType({**_CLIP, "model_type": "siglip_vision_model"})
_PIXTRAL: Mapping[str, Any] = MappingProxyType(
    {**_CLIP, "model_type": "pixtral", "head_dim": 8, "image_size": 32, "num_channels": 3}
)
_PINPOINTS = [[16, 32], [32, 16], [32, 32]]


def _own_tower(vision: Mapping[str, Any], **fields: Any) -> Mapping[str, Any]:
    """Return a tower's fields for a family that has a class of its own for it."""
    return MappingProxyType({**{key: value for key, value in vision.items() if key != "model_type"}, **fields})


def _square(generator: torch.Generator, *shape: int, size: tuple[int, int] = (16, 16)) -> torch.Tensor:
    return torch.randn(*shape, 3, *size, generator=generator)


def _draw_picture(generator: torch.Generator, seed: int) -> Picture:
    del seed
    return Picture({"pixel_values": _square(generator, 1)}, (16,))


def _draw_whole(generator: torch.Generator, seed: int) -> Picture:
    del seed
    return Picture({"pixel_values": _square(generator, 1, size=(32, 32))}, (16,))


def _draw_sized(merge: int) -> Drawer:
    def draw(generator: torch.Generator, seed: int) -> Picture:
        height, width = ((8, 16), (16, 8), (16, 24))[seed % 3]
        pixels = _square(generator, 1, size=(height, width))
        rows = height // 4 // merge
        return Picture(
            {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]])}, (width // 4 // merge,) * rows
        )

    return draw


def _draw_tiles(generator: torch.Generator, seed: int) -> Picture:
    num_tiles = 1 + seed % 3
    return Picture({"pixel_values": _square(generator, num_tiles)}, (4,) * num_tiles)


def _draw_masked_tiles(generator: torch.Generator, seed: int) -> Picture:
    pixels = _square(generator, 1, 1 + seed % 3)
    mask = torch.ones_like(pixels[:, :, 0], dtype=torch.long)
    mask[:, -1, 8 + 4 * (seed % 2) :] = 0
    return Picture({"pixel_values": pixels, "pixel_attention_mask": mask}, (4,) * pixels.shape[1], tile_dim=1)


def _draw_pinpointed(generator: torch.Generator, seed: int) -> Picture:
    (height, width), num_rows = (((20, 40), 52), ((30, 30), 88))[seed % 2]
    num_tiles = 3 if seed % 2 == 0 else 5
    sizes = torch.tensor([[height, width]])
    return Picture({"pixel_values": _square(generator, 1, num_tiles), "image_sizes": sizes}, (num_rows,))


def _draw_alone(generator: torch.Generator, seed: int) -> Picture:
    picture = _draw_pinpointed(generator, seed)
    return Picture({**picture.tensors, "batch_num_images": torch.tensor([1])}, picture.runs)


def _draw_of_several(generator: torch.Generator, seed: int) -> Picture:
    sizes = torch.tensor([[20, 20 + seed]])
    tensors = {"pixel_values": _square(generator, 1, 1), "image_sizes": sizes, "batch_num_images": torch.tensor([2])}
    return Picture(tensors, (17,))  # and a line's end


def _draw_patches(generator: torch.Generator, seed: int) -> Picture:
    height, width = ((4, 6), (8, 4), (2, 2))[seed % 3]
    pixels = torch.randn(height * width, 3 * 2 * 16, generator=generator)
    grid = torch.tensor([[1, height, width]])
    tensors = {"pixel_values": pixels, "image_grid_thw": grid}
    return Picture(tensors, (height * width // 4,), grid=(1, height, width))


_QWEN: Mapping[str, Any] = MappingProxyType(
    {
        "image_token_id": IMAGE,
        "video_token_id": IMAGE + 1,
        "vision_start_token_id": IMAGE + 2,
        "vision_end_token_id": IMAGE + 3,
    }
)
_QWEN_TEXT: Mapping[str, Any] = MappingProxyType(
    {
        **{key: value for key, value in TEXT.items() if key != "model_type"},
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    }
)
_QWEN_VISION: Mapping[str, Any] = MappingProxyType(
    {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "initializer_range": 0.3,
    }
)
_QWEN3_VISION: Mapping[str, Any] = MappingProxyType(
    {
        **_QWEN_VISION,
        "out_hidden_size": 32,
        "intermediate_size": 48,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 1],
    }
)
_ONEVISION: Mapping[str, Any] = MappingProxyType(
    {"image_token_index": IMAGE, "video_token_index": IMAGE + 1, "image_grid_pinpoints": _PINPOINTS, **_LAST}
)
CASES: Mapping[str, VisionCase] = MappingProxyType(
    {
        "aya_vision": VisionCase(
            {"image_token_index": IMAGE, "downsample_factor": 2, "alignment_intermediate_size": 64, **_LAST},
            _draw_tiles,
            {**TEXT, "model_type": "cohere2", "sliding_window": 8},
            _SIGLIP,
            is_lean=False,
        ),
        "gemma3": VisionCase(
            {"image_token_index": IMAGE, "mm_tokens_per_image": 16},
            _draw_whole,
            {**TEXT, "model_type": "gemma3_text", "sliding_window": 8, "num_hidden_layers": 3}
            | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            {**_SIGLIP, "image_size": 32},
            is_lean=False,
            is_whole=True,
        ),
        "idefics3": VisionCase(
            {"image_token_id": IMAGE, "scale_factor": 2}, _draw_masked_tiles, TEXT, _own_tower(_CLIP)
        ),
        "internvl": VisionCase(
            {"image_token_id": IMAGE, "image_seq_length": 4, "downsample_ratio": 0.5},
            _draw_tiles,
            {**TEXT, "model_type": "qwen2"},
            _own_tower(_CLIP, image_size=[16, 16], patch_size=[4, 4]),
        ),
        "llava": VisionCase({"image_token_index": IMAGE, "image_seq_length": 16, **_LAST}, _draw_picture, TEXT, _CLIP),
        "llava_next": VisionCase(
            {"image_token_index": IMAGE, "image_grid_pinpoints": _PINPOINTS, **_LAST}, _draw_pinpointed, TEXT, _CLIP
        ),
        "llava_onevision": VisionCase(_ONEVISION, _draw_alone, {**TEXT, "model_type": "qwen2"}, _SIGLIP),
        "llava_onevision_of_several": VisionCase(
            _ONEVISION,
            _draw_of_several,
            {**TEXT, "model_type": "qwen2"},
            _SIGLIP,
            model_type="llava_onevision",
        ),
        "mistral3": VisionCase(
            {"image_token_index": IMAGE, "spatial_merge_size": 2, **_LAST},
            _draw_sized(2),
            {**TEXT, "model_type": "mistral", "sliding_window": None},
            _PIXTRAL,
        ),
        "pixtral": VisionCase(
            {"image_token_index": IMAGE, "vision_feature_select_strategy": "full", **_LAST},
            _draw_sized(1),
            {**TEXT, "model_type": "mistral", "sliding_window": 8},
            _PIXTRAL,
            model_type="llava",
        ),
        "qwen2_5_vl": VisionCase(
            _QWEN,
            _draw_patches,
            _QWEN_TEXT,
            {
                **_QWEN_VISION,
                "out_hidden_size": 32,
                "intermediate_size": 48,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
        ),
        "qwen2_vl": VisionCase(_QWEN, _draw_patches, _QWEN_TEXT, {**_QWEN_VISION, "embed_dim": 32, "mlp_ratio": 2}),
        "qwen3_vl": VisionCase(
            _QWEN,
            _draw_patches,
            {**_QWEN_TEXT, "num_hidden_layers": 3},
            _QWEN3_VISION,
        ),
        "qwen3_vl_moe": VisionCase(
            _QWEN,
            _draw_patches,
            {
                **_QWEN_TEXT,
                "num_hidden_layers": 3,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
            },
            _QWEN3_VISION,
            is_lean=False,
        ),
        "smolvlm": VisionCase(
            {"image_token_id": IMAGE, "scale_factor": 2}, _draw_masked_tiles, TEXT, _own_tower(_CLIP)
        ),
        "vipllava": VisionCase(
            {"image_token_index": IMAGE, "vision_feature_layers": [-1, -2]}, _draw_picture, TEXT, _CLIP
        ),
    }
)
