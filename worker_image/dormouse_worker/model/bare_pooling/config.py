"""What config.json says of an encoder that needs no torch, and which tensors its files have. Pure.

Read strictly, as `model.bare.config` is: what is not known here is left to transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dormouse_worker.files.head_files import SEQUENCE_CLASSIFIER
from dormouse_worker.model.bare.config import odd_words
from dormouse_worker.model.bare_pooling.families import EMBEDDED, FAMILIES, Family
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.native.abi import MAX_HEAD_SIZE

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
        "activation": "gelu",  # DistilBERT's word
        "add_cross_attention": False,
        "hidden_act": "gelu",
        "is_decoder": False,
        "position_embedding_type": "absolute",
        "sinusoidal_pos_embds": False,
    }
)
_SAY_NOTHING = frozenset(  # of what a pass computes
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "_num_labels",
        "architectures",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "bos_token_id",
        "classifier_dropout",
        "directionality",
        "dropout",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "gradient_checkpointing",
        "hidden_dropout_prob",
        "id2label",  # of heads, as the next ones: see `files.head_files`
        "initializer_range",
        "label2id",
        "matryoshka_dimensions",  # of vectors, see `files.task_files`
        "model_type",
        "num_labels",
        "output_past",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "problem_type",
        "qa_dropout",
        "sbert_ce_default_activation_function",
        "sentence_transformers",
        "seq_classif_dropout",
        "tie_weights_",
        "tie_word_embeddings",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
_UNUSED = (  # of files: what stands behind the last layer, and places counted
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "pooler.dense.bias",
    "pooler.dense.weight",
)


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """A model's sizes, named as in BERT's config.json, and its family."""

    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    num_attention_heads: int
    num_hidden_layers: int
    type_vocab_size: int  # 0 = there are no kinds of tokens
    vocab_size: int
    layer_norm_eps: float
    first_position: int  # of a text's first token among the embedded positions
    family: Family
    root: str  # how the encoder's names begin

    @property
    def head_size(self) -> int:
        """Return the numbers of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def embedded(self) -> tuple[str, ...]:
        """Return the tables whose rows are added up for a token."""
        return EMBEDDED if self.type_vocab_size else EMBEDDED[:-1]

    def table(self, name: str) -> str:
        """Return what such a table's tensor is called."""
        return f"{self.root}embeddings.{name}.weight"

    def begins(self, layer: int) -> str:
        """Return how the names of a layer's tensors begin."""
        return self.root + self.family.layer.begins.format(layer)


def read_encoder(config: Mapping[str, Any], *, has_head: bool = False) -> EncoderConfig | Unfit:
    """Return the sizes of an encoder, or of one with a classifier's head; or why transformers has to read this."""
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        return Unfit(f"config.json describes none of {', '.join(FAMILIES)}")
    if (reason := next(_misfits(config, family, has_head=has_head), None)) is not None:
        return Unfit(reason)
    return EncoderConfig(
        **{name: config[word] for name, word in _words(family).items()},
        **({} if family.has_kinds else {"type_vocab_size": 0}),
        layer_norm_eps=float(family.eps or config["layer_norm_eps"]),
        first_position=config["pad_token_id"] + 1 if family.counts_behind_padding else 0,
        family=family,
        root=family.root if has_head else "",
    )


def _words(family: Family) -> dict[str, str]:
    """Return what config.json calls each size that this family has."""
    return {name: family.word(name) for name in _SIZES if family.has_kinds or name != "type_vocab_size"}


def _misfits(config: Mapping[str, Any], family: Family, *, has_head: bool) -> Iterator[str]:
    """Yield what differs; later checks may rely on what earlier ones would have yielded."""
    architecture = family.stem + (SEQUENCE_CLASSIFIER if has_head else "Model")
    needed = list(_words(family).values())
    needed += [] if family.eps else ["layer_norm_eps"]
    needed += ["pad_token_id"] if family.counts_behind_padding else []
    known = _SAY_NOTHING | _FIXED.keys() | {*needed, "pad_token_id"}
    yield from odd_words(config, {config["model_type"]: architecture}, known, _FIXED, needed)
    yield from _wrong_values(config, family)


def _wrong_values(config: Mapping[str, Any], family: Family) -> Iterator[str]:
    words = _words(family)
    for word in words.values():
        if type(config[word]) is not int or config[word] < 1:
            yield f"{word} is {config[word]!r}"
    eps = family.eps or config["layer_norm_eps"]
    if type(eps) not in (int, float) or not 0 < eps < 1:
        yield f"layer_norm_eps is {eps!r}"
    if family.counts_behind_padding:
        padding = config["pad_token_id"]
        if type(padding) is not int or not 0 <= padding < config["max_position_embeddings"] - 1:
            yield f"pad_token_id is {padding!r}"
    hidden, heads = config[words["hidden_size"]], config[words["num_attention_heads"]]
    size, rest = divmod(hidden, heads)
    if rest or size > MAX_HEAD_SIZE:
        yield f"{heads} heads share a hidden size of {hidden}"


def shapes_of(config: EncoderConfig, num_labels: int = 0) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that a pass reads, by name; of a classifier with so many labels, 0 = of none."""
    hidden, inner, names = config.hidden_size, config.intermediate_size, config.family.layer
    counts = (config.vocab_size, config.max_position_embeddings, config.type_vocab_size)
    shapes: dict[str, tuple[int, ...]] = {
        config.table(name): (count, hidden) for name, count in zip(config.embedded, counts, strict=False)
    }
    norms = [f"{config.root}embeddings.LayerNorm"]
    maps: dict[str, tuple[int, int]] = {}
    for begins in map(config.begins, range(config.num_hidden_layers)):
        square = (names.query, names.key, names.value, names.attended)
        maps |= {begins + name: (hidden, hidden) for name in square}
        maps |= {begins + names.wide: (inner, hidden), begins + names.narrow: (hidden, inner)}
        norms += [begins + names.attended_norm, begins + names.norm]
    if num_labels:
        head = config.family.head
        maps |= {head.dense: (hidden, hidden), head.labels: (num_labels, hidden)}
    for name, shape in maps.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes | {f"{name}.{kind}": (hidden,) for name in norms for kind in ("weight", "bias")}


def unused_of(config: EncoderConfig) -> frozenset[str]:
    """Return the names of tensors that may lie in the files, and that no pass of an encoder reads."""
    return frozenset(config.root + name for name in _UNUSED)
