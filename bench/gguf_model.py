"""Makes a benchmark's model as a GGUF file, as llama.cpp's converter would: Qwen2's kind, weights in Q8_0 or Q4_0.

The embedding, which is the head too, is Q8_0 in both. A token's text is its id: prompts are token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf

from bench.models import ensure_model
from bench.plain_tensors import PlainTensors
from tools.bootstrap import machine_lock

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
NORMAL, UNKNOWN, CONTROL = 1, 2, 3  # kinds of tokens
TEXT = "t"  # before an id
SPECIAL = (("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL))


def ensure_gguf(name: str, kind: str) -> Path:
    """Return the file, made first if it is not there."""
    directory = ensure_model(name, "bf16")
    file = directory.with_name(f"{directory.name}-{kind}.gguf")
    with machine_lock("bench-models"):
        if not file.is_file():
            building = file.with_suffix(".partial")
            config = json.loads((directory / "config.json").read_text("utf-8"))
            write_gguf(PlainTensors(directory), config, kind, building)
            building.rename(file)
    return file


def write_gguf(tensors: PlainTensors, config: Mapping[str, Any], kind: str, file: Path) -> None:
    """Write a model whose matrices are of this type."""
    assert config["model_type"] == "qwen2", "others have their queries' rows in another order"
    writer = gguf.GGUFWriter(file, "qwen2")
    _describe(writer, config)
    for name in tensors:
        tensor = tensors[name]
        chosen = gguf.GGMLQuantizationType["Q8_0" if name in WHOLE else kind]
        if tensor.ndim == 1:
            writer.add_tensor(_name_of(name), tensor)
        else:
            writer.add_tensor(_name_of(name), gguf.quantize(tensor, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name_of(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, *path, last = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(path)]}.{last}"


def _describe(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    tokens = [*SPECIAL, *((f"{TEXT}{number}", NORMAL) for number in range(len(SPECIAL), config["vocab_size"]))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
