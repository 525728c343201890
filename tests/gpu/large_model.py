"""Writes a Llama of 8 billion parameters with random weights, made on the device; without a GPU a tiny one.

Decoding reads every weight once, so their size is what is measured, not what they know.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

ROOM = 1.1  # of the files, on the disk


@dataclass(frozen=True)
class Shape:
    """A Llama's sizes, named as in its config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int

    @property
    def matrix_elements(self) -> int:
        """Return the weights that each token is multiplied with: all but the embeddings."""
        heads = self.head_dim * (2 * self.num_attention_heads + 2 * self.num_key_value_heads)
        layer = self.hidden_size * (heads + 3 * self.intermediate_size)
        return self.num_hidden_layers * layer + self.hidden_size * self.vocab_size

    @property
    def kv_elements(self) -> int:
        """Return what a token takes in the cache."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    def prefill_flops(self, num_tokens: int) -> float:
        """Return what one prompt takes; the last matrix is multiplied with its last token alone."""
        head = self.hidden_size * self.vocab_size
        attention = 2.0 * num_tokens * num_tokens * self.num_attention_heads * self.head_dim * self.num_hidden_layers
        return 2.0 * num_tokens * (self.matrix_elements - head) + 2.0 * head + attention


LLAMA_8B = Shape(4096, 32, 32, 8, 128, 14336, 128256, 8192)
TINY = Shape(64, 2, 4, 2, 16, 128, 512, 1024)


def write_large_model(directory: Path, shape: Shape, device: torch.device) -> None:
    """Write configuration and weights, a file per layer. Raises OSError, with the numbers, if the disk is too full."""
    config = LlamaConfig(
        **asdict(shape), dtype="bfloat16", tie_word_embeddings=False, architectures=["LlamaForCausalLM"]
    )
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    total_bytes = sum(2 * size.numel() for size in shapes.values())
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < ROOM * total_bytes:
        raise OSError(f"{directory}: the model takes {total_bytes} bytes, {free_bytes} are free; set TMPDIR elsewhere")
    config.save_pretrained(directory)
    weight_map = {name: f"{_shard(name)}.safetensors" for name in shapes}
    for file in dict.fromkeys(weight_map.values()):
        tensors = {name: _draw(shapes[name], device).cpu() for name, place in weight_map.items() if place == file}
        save_file(tensors, directory / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _shard(name: str) -> str:
    """Return the file of a weight: its layer's, or one of its own."""
    parts = name.split(".")
    return f"layer-{parts[2]}" if parts[1] == "layers" else parts[-2]


def _draw(size: torch.Size, device: torch.device) -> torch.Tensor:
    """Return random weights that keep the scale of what they are multiplied with; norms are ones."""
    made = torch.ones(size, dtype=torch.bfloat16, device=device)
    return made if len(size) == 1 else made.normal_(std=size[1] ** -0.5)
