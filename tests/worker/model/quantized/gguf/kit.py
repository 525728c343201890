"""Models as GGUF files, written as llama.cpp's converter does, and what is looked at in one that was loaded."""

import json

import gguf
import torch
from safetensors.torch import load_file

from dormouse_worker.model.quantized.modules import QuantizedLinear
from dormouse_worker.model.weights.skeleton import iter_tensors
from tests.worker.files.gguf.kit import BYTE_LEVEL, write

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3_text": "gemma3"}
LLAMA_CPP = {name: getattr(gguf.MODEL_ARCH, name.upper()) for name in ARCHITECTURES.values()}


def in_pairs(rows, heads):
    """Return a projection's rows as llama.cpp wants them: both of a rotation beside each other."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def convert(directory, file, types):
    """Write a Hugging Face directory as llama.cpp's converter does."""
    config = json.loads((directory / "config.json").read_text())
    name = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(LLAMA_CPP[name], config["num_hidden_layers"])
    tensors = {}
    for theirs, tensor in load_file(directory / "model.safetensors").items():
        if theirs == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        stem, _, last = theirs.rpartition(".")
        rows = tensor.numpy()
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(stem.rpartition(".")[2])
        if name == "llama" and heads:
            rows = in_pairs(rows, config[heads])
        if name.startswith("gemma") and stem.endswith("norm"):
            rows = rows + 1
        tensors[f"{names.get_name(stem)}.{last}"] = rows
    keys = {
        "vocab_size": config["vocab_size"],
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim", SIZES["head_dim"]),
        "attention.value_length": config.get("head_dim", SIZES["head_dim"]),
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    if name.startswith("gemma"):
        caps = ("attn_logit_softcapping", "final_logit_softcapping")
        keys |= {"attention.sliding_window": config["sliding_window"]} | {c: config[c] for c in caps if config.get(c)}
        keys |= {"attention.sliding_window_pattern": config["layer_types"].index("full_attention") + 1}
    rope = config["rope_parameters"]
    keys["rope.freq_base"] = float(rope.get("full_attention", rope)["rope_theta"])
    said = {f"{name}.{key}": value for key, value in keys.items()} | BYTE_LEVEL
    return write(file, said, tensors, types, architecture=name)


def tensors_of(model):
    return {name: tensor.clone() for name, tensor in iter_tensors(model.module)}


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def kept(model):
    return {name for name, part in model.module.named_modules() if isinstance(part, QuantizedLinear)}
