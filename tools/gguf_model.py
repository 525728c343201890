"""Turn a GGUF file of a Llama into a Hugging Face directory: config.json, safetensors in bfloat16, tokenizer.

For the demo's model. Quantized tensors are multiplied out; what this does not know of a file is refused by name.
The package `gguf` reads the format and need not be installed: `python -m tools.gguf_model` runs where it lies.
transformers reads such files as well, but cannot save what it read.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

ARCHITECTURE = "llama"
TOKENIZER, PRETOKENIZER = "gpt2", "smollm"  # byte-level BPE; digits one by one
CONTROL = 3  # what GGUF calls a token that text never becomes
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")

Metadata = Mapping[str, Any]


class NotConvertible(Exception):
    """The file is none that this converts; the message names what it has and what is taken."""


@dataclass(frozen=True, slots=True)
class Gguf:
    """A file that was read: what it says of itself, and its tensors, multiplied out one at a time."""

    metadata: Metadata
    tensors: Iterator[tuple[str, np.ndarray[Any, Any]]]  # rows first, as in PyTorch; float32


def read(path: Path) -> Gguf:
    """Read a file. Needs the package `gguf`."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    return Gguf(metadata, ((str(one.name), dequantize(one.data, one.tensor_type)) for one in reader.tensors))


def check(metadata: Metadata) -> None:
    """Raise NotConvertible for what would be converted wrongly."""
    taken = {
        "general.architecture": ARCHITECTURE,
        "tokenizer.ggml.model": TOKENIZER,
        "tokenizer.ggml.pre": PRETOKENIZER,
    }
    for name, value in taken.items():
        if metadata.get(name) != value:
            raise NotConvertible(f"{name} is {metadata.get(name)!r}; only {value!r} is converted")
    if scaling := [name for name in metadata if name.startswith(f"{ARCHITECTURE}.rope.scaling")]:
        raise NotConvertible(f"{scaling[0]} is {metadata[scaling[0]]!r}; scaled positions are not converted")


def config(metadata: Metadata, *, has_head: bool) -> dict[str, Any]:
    """Return config.json."""

    def said(name: str) -> Any:
        return metadata[f"{ARCHITECTURE}.{name}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": said("embedding_length"),
        "intermediate_size": said("feed_forward_length"),
        "num_hidden_layers": said("block_count"),
        "num_attention_heads": said("attention.head_count"),
        "num_key_value_heads": said("attention.head_count_kv"),
        "max_position_embeddings": said("context_length"),
        "rms_norm_eps": float(f"{said('attention.layer_norm_rms_epsilon'):.6g}"),  # 1e-5 in 32 bits is 9.9999997e-6
        "rope_theta": said("rope.freq_base"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": not has_head,
        "dtype": "bfloat16",
        **special_ids(metadata),
    }


def special_ids(metadata: Metadata) -> dict[str, int]:
    """Return the ids that config.json and generation_config.json name."""
    named = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{short}_token_id") for name, short in named.items()}
    return {name: int(value) for name, value in ids.items() if value is not None}


def parameter(name: str) -> str:
    """Return transformers' name of a tensor. Raises NotConvertible."""
    if (found := LAYER.fullmatch(name)) and found[2] in LAYER_NAMES:
        return f"model.layers.{found[1]}.{LAYER_NAMES[found[2]]}.weight"
    stem = name.removesuffix(".weight")
    if stem == name or stem not in NAMES:
        raise NotConvertible(f"the file has a tensor {name}, which a plain Llama does not have")
    return f"{NAMES[stem]}.weight"


def halves_apart(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Return a projection's rows as transformers orders them: GGUF has the two rows of a rotation beside each other.

    [heads × pairs × 2, hidden] → [heads × 2 × pairs, hidden]
    """
    out, hidden = rows.shape
    return rows.reshape(num_heads, out // num_heads // 2, 2, hidden).swapaxes(1, 2).reshape(out, hidden)


def weights(gguf: Gguf) -> dict[str, torch.Tensor]:
    """Return all parameters in bfloat16. Raises NotConvertible."""
    import numpy as np
    import torch

    rotated = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
    made = {}
    for name, tensor in gguf.tensors:
        kind = found[2] if (found := LAYER.fullmatch(name)) else ""
        heads = gguf.metadata[f"{ARCHITECTURE}.{rotated[kind]}"] if kind in rotated else 0
        rows = halves_apart(tensor, heads) if heads else tensor
        made[parameter(name)] = torch.from_numpy(np.array(rows, dtype=np.float32)).to(torch.bfloat16)
    return made


def tokenizer(metadata: Metadata) -> Any:
    """Return the tokenizer in transformers' clothes."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    wrapped: Any = PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=metadata[f"{ARCHITECTURE}.context_length"],
        clean_up_tokenization_spaces=False,
        **{name.removesuffix("_id"): tokens[number] for name, number in special_ids(metadata).items()},
    )
    wrapped.chat_template = metadata.get("tokenizer.chat_template")
    return wrapped


def convert(path: Path, folder: Path) -> None:
    """Write the model into a folder that is there. Raises NotConvertible."""
    from safetensors.torch import save_file

    gguf = read(path)
    check(gguf.metadata)
    parameters = weights(gguf)
    save_file(parameters, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(config(gguf.metadata, has_head="lm_head.weight" in parameters), indent=2) + "\n"
    )
    (folder / "generation_config.json").write_text(json.dumps(special_ids(gguf.metadata), indent=2) + "\n")
    tokenizer(gguf.metadata).save_pretrained(folder)


def main() -> None:
    """Convert one file."""
    parser = argparse.ArgumentParser(prog="python -m tools.gguf_model", description=__doc__)
    parser.add_argument("file", type=Path, help="a GGUF file")
    parser.add_argument("folder", type=Path, help="an empty folder for the model")
    args = parser.parse_args()
    convert(args.file, args.folder)


if __name__ == "__main__":
    main()
