"""Makes the benchmarks' models: ordinary Hugging Face directories with seeded random weights in DORMOUSE_CACHE/models.

The weights know nothing, but they decide: matrices are drawn so that each layer keeps its input's scale and logits
spread over several units. (With the usual initialisation all logits are nearly the same, and rounding would choose.)
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tools.bootstrap import cache_root, machine_lock
from tools.train_model import library_sources, train_tokenizer

Dtype = Literal["fp32", "bf16"]
ModelType = Literal["llama", "qwen2", "qwen3"]
DTYPES: tuple[Dtype, ...] = ("fp32", "bf16")
SEED = 1234


MOST_TOKENIZER_ENTRIES = 32000  # no more can be learned from the texts; the ids above have no text


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes, named as in its config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = False
    model_type: ModelType = "llama"

    @property
    def layer_weights(self) -> int:
        """Return how many weights of all layers' matrices multiply each token."""
        head_size = self.hidden_size // self.num_attention_heads
        query_and_out = 2 * self.hidden_size * self.hidden_size
        keys_and_values = 2 * self.hidden_size * self.num_key_value_heads * head_size
        return self.num_hidden_layers * (
            query_and_out + keys_and_values + 3 * self.hidden_size * self.intermediate_size
        )

    @property
    def head_weights(self) -> int:
        """Return how many weights make the logits of a row."""
        return self.hidden_size * self.vocab_size


SHAPES = {
    "tiny": Shape(256, 4, 8, 2, 688, 4096),  # 5 M parameters
    "small": Shape(768, 12, 12, 4, 2048, 32000),  # 125 M parameters
    # 494 M parameters, of Qwen2.5-0.5B's shape
    "q05": Shape(896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True, model_type="qwen2"),
}
FURTHER = {"small-qwen3": replace(SHAPES["small"], model_type="qwen3")}  # no benchmark's unless it names them
_ALL = SHAPES | FURTHER


def model_dir(name: str, dtype: Dtype = "fp32") -> Path:
    """Return where a model is kept; the name changes with its shape, this file and the interpreter's library."""
    parts = (repr(_ALL[name]), sys.version, Path(__file__).read_text("utf-8"))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return cache_root() / "models" / f"bench-{name}-{dtype}-{digest}"


def ensure_model(name: str, dtype: Dtype = "fp32") -> Path:
    """Return the model's directory, made first if it is not there."""
    with machine_lock("bench-models"):
        if not model_dir(name, dtype).is_dir():
            _make(name, dtype)
    return model_dir(name, dtype)


def _make(name: str, dtype: Dtype) -> None:
    """Write the model: in all dtypes the same weights, rounded."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = train_tokenizer(library_sources(), min(_ALL[name].vocab_size, MOST_TOKENIZER_ENTRIES))
    torch.manual_seed(SEED)
    model = _untrained(_ALL[name])
    spread_weights(model)
    final = model_dir(name, dtype)
    building = final.with_name(final.name + ".partial")
    shutil.rmtree(building, ignore_errors=True)
    model.to(torch.float32 if dtype == "fp32" else torch.bfloat16).save_pretrained(building)
    tokenizer.save_pretrained(building)
    shutil.rmtree(final, ignore_errors=True)
    building.rename(final)
    print(f"[bench] made {final}", file=sys.stderr, flush=True)


def _untrained(shape: Shape) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = {name: size for name, size in asdict(shape).items() if name != "model_type"}
    ids: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    if shape.model_type == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**sizes, **ids))
    if shape.model_type == "qwen3":
        head_dim = shape.hidden_size // shape.num_attention_heads
        return Qwen3ForCausalLM(Qwen3Config(head_dim=head_dim, **sizes, **ids))
    return LlamaForCausalLM(LlamaConfig(**sizes, **ids))


def spread_weights(model: Any) -> None:
    """Draw every matrix anew with variance 1 / inputs, and the embeddings with variance 1; in place.

    Embeddings that are the head, too, are drawn as its matrix: the first norm brings them to scale.
    """
    import torch

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5)
        if not model.config.tie_word_embeddings:
            model.get_input_embeddings().weight.normal_()


def main() -> None:
    """Make models and print their directories."""
    parser = argparse.ArgumentParser(prog="python -m bench.models", description=__doc__)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: both")
    parser.add_argument(
        "names",
        nargs="*",
        default=list(SHAPES),
        metavar="NAME",
        help=f"{', '.join(_ALL)} (default: {', '.join(SHAPES)})",
    )
    flags = parser.parse_args()
    for name in flags.names:
        if name not in _ALL:
            parser.error(f"model is {name!r}; known are {', '.join(_ALL)}")
        for dtype in flags.dtype:
            print(ensure_model(name, dtype))


if __name__ == "__main__":
    main()
