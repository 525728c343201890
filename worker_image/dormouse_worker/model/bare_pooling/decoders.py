"""What config.json says of a decoder that makes vectors, labels or scores. Pure.

Read by `model.bare.config`, as strictly as of one that generates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dormouse_worker.files.head_files import SEQUENCE_CLASSIFIER
from dormouse_worker.model.bare.config import FAMILIES as DECODERS
from dormouse_worker.model.bare.config import read_config
from dormouse_worker.model.bare.tensors import EMBEDDING, HEAD, NORM
from dormouse_worker.model.bare_pooling.gated import Attending, GatedConfig, GatedFamily, GatedNames
from dormouse_worker.model.bare_pooling.heads import HeadNames
from dormouse_worker.model.lean.unfit import Unfit

ROOT = "model."  # of files that a model with a head wrote
_GENERATES = "ForCausalLM"
_FAMILY = GatedFamily(
    GatedNames(
        words=EMBEDDING.removeprefix(ROOT),
        begins="layers.{}.",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        attended="self_attn.o_proj",
        gate="mlp.gate_proj",
        other="mlp.up_proj",
        narrow="mlp.down_proj",
        attention_norm="input_layernorm",
        block_norm="post_attention_layernorm",
        last_norm=NORM.removeprefix(ROOT),
    ),
    gate="silu",
    keeps_mean=True,
)
_HEAD = HeadNames(None, "tanh", "score", reads="last", has_bias=False)
_OF_TASKS = frozenset(  # words that `read_config` does not know: see `files.task_files` and `files.head_files`
    {
        "auto_map",  # nobody's code but transformers' is run
        "id2label",
        "is_causal",
        "label2id",
        "matryoshka_dimensions",
        "num_labels",
        "problem_type",
        "sbert_ce_default_activation_function",
        "sentence_transformers",
    }
)


def read_decoder(config: Mapping[str, Any], names: Collection[str], *, has_head: bool = False) -> GatedConfig | Unfit:
    """Return the sizes, or why transformers has to read this; `names` are those of the files' tensors."""
    architecture = DECODERS[config["model_type"]]
    stem = architecture.removesuffix(_GENERATES)
    known = [stem + SEQUENCE_CLASSIFIER] if has_head else [architecture, f"{stem}Model"]
    if config.get("architectures") not in [[name] for name in known]:
        return Unfit(f"config.json describes no {' or '.join(known)}")
    plain = {word: value for word, value in config.items() if word not in _OF_TASKS}
    found = read_config({**plain, "architectures": [architecture]})
    if isinstance(found, Unfit):
        return found
    is_causal, padding = config.get("is_causal", True), config.get("pad_token_id")
    if type(is_causal) is not bool or not (is_causal or found.sliding_window is None):
        return Unfit(f"is_causal is {is_causal!r}")
    if padding is not None and type(padding) is not int:
        return Unfit(f"pad_token_id is {padding!r}")
    return GatedConfig(
        hidden_size=found.hidden_size,
        intermediate_size=found.intermediate_size,
        max_position_embeddings=found.max_position_embeddings,
        num_attention_heads=found.num_attention_heads,
        num_key_value_heads=found.num_key_value_heads,
        vocab_size=found.vocab_size,
        head_size=found.head_dim,
        eps=found.rms_norm_eps,
        ways=(Attending(found.rope, found.sliding_window, is_causal),),
        layers=(0,) * found.num_hidden_layers,
        family=_FAMILY,
        root=root_of(names),
        head=_HEAD,
        has_biases=found.has_biases,
        has_head_norms=found.has_head_norms,
        padding=padding,
        unread=frozenset({f"{HEAD}.weight"}),
    )


def root_of(names: Collection[str]) -> str:
    """Return how a network's names begin in its files: as its own wrote them, or those of a model around it."""
    return ROOT if any(name.startswith(ROOT) for name in names) else ""
