"""Makes the benchmarks' models: ordinary Hugging Face directories with seeded random weights in DORMOUSE_CACHE/models.

The weights know nothing, but they decide: matrices are drawn so that each layer keeps its input's scale and logits
spread over several units. (With the usual initialisation all logits are nearly the same, and rounding would choose.)
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tools.bootstrap import cache_root, machine_lock
from tools.train_model import library_sources, train_tokenizer

Dtype = Literal["fp32", "bf16"]
DTYPES: tuple[Dtype, ...] = ("fp32", "bf16")
SEED = 1234


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's sizes, named as in its config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 4096


SHAPES = {
    "tiny": Shape(256, 4, 8, 2, 688, 4096),  # 5 M parameters
    "small": Shape(768, 12, 12, 4, 2048, 32000),  # 125 M parameters
}


def model_dir(name: str, dtype: Dtype = "fp32") -> Path:
    """Return where a model is kept; the name changes with its shape, this file and the interpreter's library."""
    parts = (repr(SHAPES[name]), sys.version, Path(__file__).read_text("utf-8"))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return cache_root() / "models" / f"bench-{name}-{dtype}-{digest}"


def ensure_model(name: str, dtype: Dtype = "fp32") -> Path:
    """Return the model's directory, made first if it is not there."""
    with machine_lock("bench-models"):
        if not model_dir(name, dtype).is_dir():
            _make(name)
    return model_dir(name, dtype)


def _make(name: str) -> None:
    """Write the model in all dtypes: the same weights, rounded."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    shape = SHAPES[name]
    tokenizer = train_tokenizer(library_sources(), shape.vocab_size)
    torch.manual_seed(SEED)
    model: Any = LlamaForCausalLM(LlamaConfig(**asdict(shape), bos_token_id=0, eos_token_id=1, pad_token_id=1))
    spread_weights(model)
    for dtype, torch_dtype in zip(DTYPES, (torch.float32, torch.bfloat16), strict=True):
        final = model_dir(name, dtype)
        building = final.with_name(final.name + ".partial")
        shutil.rmtree(building, ignore_errors=True)
        model.to(torch_dtype).save_pretrained(building)
        tokenizer.save_pretrained(building)
        shutil.rmtree(final, ignore_errors=True)
        building.rename(final)
        print(f"[bench] made {final}", file=sys.stderr, flush=True)


def spread_weights(model: Any) -> None:
    """Draw every matrix anew with variance 1 / inputs, and the embeddings with variance 1; in place."""
    import torch

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5)
        model.get_input_embeddings().weight.normal_()


def main() -> None:
    """Make models and print their directories."""
    parser = argparse.ArgumentParser(prog="python -m bench.models", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(SHAPES), metavar="NAME", help="tiny, small (default: both)")
    for name in parser.parse_args().names:
        if name not in SHAPES:
            parser.error(f"model is {name!r}; known are {', '.join(SHAPES)}")
        for dtype in DTYPES:
            print(ensure_model(name, dtype))


if __name__ == "__main__":
    main()
