"""What config.json says of an encoder that needs no torch, and which tensors its files have. Pure.

Read strictly, as `model.bare.config` is: what is not known here is left to transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dormouse_worker.model.bare.config import odd_words
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.native.abi import MAX_HEAD_SIZE

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "bert": "BertModel",
        "camembert": "CamembertModel",
        "roberta": "RobertaModel",
        "xlm-roberta": "XLMRobertaModel",
    }
)
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)
_FIXED: Mapping[str, object] = MappingProxyType(  # other values are transformers' to compute
    {
        "add_cross_attention": False,
        "hidden_act": "gelu",
        "is_decoder": False,
        "position_embedding_type": "absolute",
    }
)
_SAY_NOTHING = frozenset(  # of what a pass computes
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_probs_dropout_prob",
        "bos_token_id",
        "classifier_dropout",
        "directionality",
        "dtype",
        "eos_token_id",
        "gradient_checkpointing",
        "hidden_dropout_prob",
        "id2label",
        "initializer_range",
        "label2id",
        "matryoshka_dimensions",  # of vectors, see `files.task_files`
        "model_type",
        "output_past",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "tie_word_embeddings",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
_READ = frozenset({*_SIZES, *_FIXED, "layer_norm_eps", "pad_token_id"})
UNUSED = frozenset(  # of files: what stands behind the last layer, and places counted
    {"embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.bias", "pooler.dense.weight"}
)


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """A model's sizes, named as in config.json."""

    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    num_attention_heads: int
    num_hidden_layers: int
    type_vocab_size: int
    vocab_size: int
    layer_norm_eps: float
    first_position: int  # of a text's first token among the embedded positions

    @property
    def head_size(self) -> int:
        """Return the numbers of one head."""
        return self.hidden_size // self.num_attention_heads


def read_encoder(config: Mapping[str, Any]) -> EncoderConfig | Unfit:
    """Return the sizes, or why transformers has to read this configuration."""
    reason = next(_misfits(config), None)
    if reason is not None:
        return Unfit(reason)
    return EncoderConfig(
        **{name: config[name] for name in _SIZES},
        layer_norm_eps=float(config["layer_norm_eps"]),
        first_position=0 if config["model_type"] == "bert" else config["pad_token_id"] + 1,
    )


def _misfits(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs; later checks may rely on what earlier ones would have yielded."""
    needed = (*_SIZES, "layer_norm_eps", *(() if config.get("model_type") == "bert" else ("pad_token_id",)))
    yield from odd_words(config, FAMILIES, _READ | _SAY_NOTHING, _FIXED, needed)
    yield from _wrong_values(config)


def _wrong_values(config: Mapping[str, Any]) -> Iterator[str]:
    for name in _SIZES:
        if type(config[name]) is not int or config[name] < 1:
            yield f"{name} is {config[name]!r}"
    if type(config["layer_norm_eps"]) not in (int, float) or not 0 < config["layer_norm_eps"] < 1:
        yield f"layer_norm_eps is {config['layer_norm_eps']!r}"
    if config["model_type"] != "bert":
        padding = config["pad_token_id"]
        if type(padding) is not int or not 0 <= padding < config["max_position_embeddings"] - 1:
            yield f"pad_token_id is {padding!r}"
    size, rest = divmod(config["hidden_size"], config["num_attention_heads"])
    if rest or size > MAX_HEAD_SIZE:
        yield f"{config['num_attention_heads']} heads share a hidden size of {config['hidden_size']}"


EMBEDDED = ("word_embeddings", "position_embeddings", "token_type_embeddings")
QUERY, KEY, VALUE = (f"attention.self.{name}" for name in ("query", "key", "value"))
ATTENDED, WIDE, NARROW = "attention.output.dense", "intermediate.dense", "output.dense"
ATTENDED_NORM, LAYER_NORM = "attention.output.LayerNorm", "output.LayerNorm"


def prefix(layer: int) -> str:
    """Return how the names of a layer's tensors begin."""
    return f"encoder.layer.{layer}."


def shapes_of(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that a pass reads, by name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    counts = (config.vocab_size, config.max_position_embeddings, config.type_vocab_size)
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{name}.weight": (count, hidden) for name, count in zip(EMBEDDED, counts, strict=True)
    }
    vectors = {"embeddings.LayerNorm": hidden}
    for begins in map(prefix, range(config.num_hidden_layers)):
        maps = {QUERY: (hidden, hidden), KEY: (hidden, hidden), VALUE: (hidden, hidden), ATTENDED: (hidden, hidden)}
        maps |= {WIDE: (inner, hidden), NARROW: (hidden, inner)}
        for name, shape in maps.items():
            shapes |= {f"{begins}{name}.weight": shape, f"{begins}{name}.bias": shape[:1]}
        vectors |= {begins + name: hidden for name in (ATTENDED_NORM, LAYER_NORM)}
    return shapes | {f"{name}.{kind}": (size,) for name, size in vectors.items() for kind in ("weight", "bias")}
