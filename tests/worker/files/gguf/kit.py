"""GGUF files of tiny models, written by the library that defines the format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *(chr(letter) for letter in range(33, 127)),
    "Ġ",
    "Ċ",
    "th",
    "the",
]
KINDS = [3, 3, 3, *([1] * (len(TOKENS) - 3))]
MERGES = ["t h", "th e"]
LLAMA: Mapping[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1e4,
}
BYTE_LEVEL: Mapping[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
}


def llama_tensors(vocab: int = len(TOKENS), num_layers: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """Return random tensors for what LLAMA says, float32, by GGUF's names."""
    draw = np.random.default_rng(1).standard_normal
    tensors = {"token_embd.weight": draw((vocab, 32)), "output_norm.weight": draw(32)}
    for number in range(num_layers):
        shapes = {"attn_norm": (32,), "ffn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32)}
        shapes |= {"attn_output": (32, 32), "ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
        tensors |= {f"blk.{number}.{name}.weight": draw(shape) for name, shape in shapes.items()}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def write(
    file: Path,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    types: Mapping[str, str] | None = None,
    *,
    architecture: str = "llama",
) -> Path:
    """Write a file of float32 tensors, those of 2 dimensions rounded to the type that `types` names, "" = of all."""
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in ({**LLAMA, **BYTE_LEVEL} if metadata is None else metadata).items():
        add(writer, key, value)
    for name, tensor in (llama_tensors() if tensors is None else tensors).items():
        kind = (types or {}).get(name, (types or {}).get("", "F32")) if tensor.ndim > 1 else "F32"
        chosen = gguf.GGMLQuantizationType[kind]
        data = tensor if kind == "F32" else six_bits(tensor) if kind == "Q6_K" else gguf.quantize(tensor, chosen)
        writer.add_tensor(name, data, raw_dtype=None if kind in ("F32", "F16") else chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a key of the type that converters give it."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def six_bits(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round rows float32 [n, columns] to Q6_K, which the library only reads; return uint8 [n, bytes]."""
    groups = rows.reshape(-1, 16, 16)
    wanted = np.abs(groups).max(-1) / 31
    scale = (wanted.max(-1, keepdims=True) / 127).astype(np.float16)
    factors = np.rint(wanted / scale.astype(np.float32)).clip(0, 127).astype(np.int8)
    steps = np.maximum(scale.astype(np.float32) * factors, 1e-30)
    numbers = (np.rint(groups / steps[..., None]).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (numbers[:, :, :2] & 15) | ((numbers[:, :, 2:] & 15) << 4)
    high = sum((numbers[:, :, part] >> 4) << 2 * part for part in range(4))
    parts = (low.reshape(-1, 128), high.reshape(-1, 64), factors.view(np.uint8), scale.view(np.uint8))
    return np.concatenate(parts, 1).reshape(len(rows), -1)
