"""What transformers calls the tensors of a GGUF file, and what has to be undone of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dormouse_worker.files.gguf.facts import Facts
from dormouse_worker.files.safetensors_files import StoredTensor

FREQUENCIES = "rope_freqs.weight"  # is in config.json, see `config`
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LLAMA = {
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
_QWEN3 = {**_LLAMA, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA = {
    **_QWEN3,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
LAYERS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"llama": _LLAMA, "qwen2": _LLAMA, "qwen3": _QWEN3, "gemma2": _GEMMA, "gemma3": _GEMMA}
)
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class Origin:
    """A tensor of the file, and how a tensor of transformers' is made of it."""

    name: str
    stored: StoredTensor
    num_heads: int = 0  # whose rows lie in pairs that a rotation turns, not in halves; 0 = rows lie as they shall
    less: float = 0.0  # what is taken away: llama.cpp keeps some norms with the one that is added to them


def origins_of(facts: Facts) -> Mapping[str, Origin]:
    """Return where each tensor comes from, by transformers' name. Tensors of unknown names keep theirs."""
    layers = LAYERS[facts.architecture]
    return {
        _translated(name, layers): _origin(facts, name, stored)
        for name, stored in facts.gguf.tensors.items()
        if name != FREQUENCIES
    }


def _translated(name: str, layers: Mapping[str, str]) -> str:
    if (found := _LAYER.fullmatch(name)) and found[2] in layers:
        return f"model.layers.{found[1]}.{layers[found[2]]}.{found[3]}"
    stem, _, last = name.rpartition(".")
    return f"{_WHOLE[stem]}.{last}" if stem in _WHOLE else name


def _origin(facts: Facts, name: str, stored: StoredTensor) -> Origin:
    if facts.architecture == "llama":
        heads = "head_count" if ".attn_q." in name else "head_count_kv" if ".attn_k." in name else ""
        return Origin(name, stored, facts.whole(f"llama.attention.{heads}") if heads else 0)
    return Origin(name, stored, less=float(facts.architecture.startswith("gemma") and name.endswith("norm.weight")))
