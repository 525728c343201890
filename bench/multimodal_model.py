"""A model of SmolVLM-256M's shape with random weights, and all the files that a server needs to see with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from tests.worker.front.images.kit import make_tokenizer

VOCAB_SIZE, TILE_TOKENS, TILE_PIXELS = 49280, 64, 512  # the last are of a side
TEXT: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "pad_token_id": 2,
    }
)
VISION: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": TILE_PIXELS,
        "patch_size": 16,
    }
)
FEW: Mapping[str, Any] = MappingProxyType(
    {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
)  # of both parts, where what they compute does not matter
TOKENS = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
}
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_weights(path: Path, image_id: int, *, kind: str = "smolvlm", is_small: bool = False) -> Path:
    """Write configuration and weights; return the directory."""
    torch.manual_seed(0)
    text, vision = dict(TEXT), dict(VISION)
    if is_small:
        text |= {**FEW, "num_key_value_heads": 2, "head_dim": 16}
        vision |= FEW
    config = AutoConfig.for_model(
        kind, text_config=text, vision_config=vision, image_token_id=image_id, scale_factor=4, pad_token_id=2
    )
    AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    return path


def write_model(path: Path, *, is_small: bool = False) -> Path:
    """Write the same with a tokenizer of bytes, a template, and a processor that makes one tile of any image.

    As the smaller models of the family it is an Idefics3 to servers: SmolVLM's processor wants a package for videos.
    """
    tokenizer: Any = make_tokenizer(TOKENS)
    tokenizer.chat_template = TEMPLATE
    write_weights(path, tokenizer.convert_tokens_to_ids("<image>"), kind="idefics3", is_small=is_small)
    tokenizer.save_pretrained(path)
    side = {"longest_edge": TILE_PIXELS}
    images = Idefics3ImageProcessorPil(size=side, max_image_size=side).to_dict()
    images |= {"image_processor_type": "Idefics3ImageProcessor", "processor_class": "Idefics3Processor"}
    (path / "preprocessor_config.json").write_text(json.dumps(images), "utf-8")
    processor = {"image_seq_len": TILE_TOKENS, "processor_class": "Idefics3Processor"}
    (path / "processor_config.json").write_text(json.dumps(processor), "utf-8")
    return path
