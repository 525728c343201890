"""What config.json says of an encoder with learned positions, and which tensors its files have. Pure.

Read strictly, as `model.bare.config` is: what is not known here is left to transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dormouse_worker.files.head_files import SEQUENCE_CLASSIFIER
from dormouse_worker.model.bare.config import odd_words, wrong_eps
from dormouse_worker.model.bare_pooling.families import EMBEDDED, FAMILIES, Family
from dormouse_worker.model.bare_pooling.heads import HeadNames
from dormouse_worker.model.bare_pooling.words import SAY_NOTHING, SIZES, wrong_sizes
from dormouse_worker.model.lean.unfit import Unfit

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

    @property
    def words(self) -> str:
        """Return the name of the tensor with what stands for each token."""
        return self.table(EMBEDDED[0])

    @property
    def max_length(self) -> int:
        """Return the longest text in tokens."""
        return self.max_position_embeddings - self.first_position

    @property
    def head(self) -> HeadNames:
        """Return what stands behind it where it classifies."""
        return self.family.head

    @property
    def eps(self) -> float:
        """Return what its norms add to the variance."""
        return self.layer_norm_eps

    @property
    def padding(self) -> int | None:
        """Return which token no head reads: there is none."""

    @property
    def unused(self) -> frozenset[str]:
        """Return the names of tensors that may lie in the files, and that no pass of an encoder reads."""
        return frozenset(self.root + name for name in _UNUSED)

    def table(self, name: str) -> str:
        """Return what such a table's tensor is called."""
        return f"{self.root}embeddings.{name}.weight"

    def begins(self, layer: int) -> str:
        """Return how the names of a layer's tensors begin."""
        return self.root + self.family.layer.begins.format(layer)

    def shapes(self, num_labels: int = 0) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor that a pass reads, by name; of a classifier with so many labels, 0 = none."""
        hidden, inner, names = self.hidden_size, self.intermediate_size, self.family.layer
        counts = (self.vocab_size, self.max_position_embeddings, self.type_vocab_size)
        shapes: dict[str, tuple[int, ...]] = {
            self.table(name): (count, hidden) for name, count in zip(self.embedded, counts, strict=False)
        }
        norms = [f"{self.root}embeddings.LayerNorm"]
        maps: dict[str, tuple[int, int]] = {}
        for begins in map(self.begins, range(self.num_hidden_layers)):
            square = (names.query, names.key, names.value, names.attended)
            maps |= {begins + name: (hidden, hidden) for name in square}
            maps |= {begins + names.wide: (inner, hidden), begins + names.narrow: (hidden, inner)}
            norms += [begins + names.attended_norm, begins + names.norm]
        for name, shape in maps.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        shapes |= {f"{name}.{kind}": (hidden,) for name in norms for kind in ("weight", "bias")}
        return shapes | (self.head.shapes(hidden, num_labels) if num_labels else {})


def read_encoder(config: Mapping[str, Any], *, has_head: bool = False) -> EncoderConfig | Unfit:
    """Return the sizes of one of `FAMILIES`, or of one with a classifier's head; or why transformers has to read it."""
    family = FAMILIES[config["model_type"]]
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
    return {name: family.word(name) for name in SIZES if family.has_kinds or name != "type_vocab_size"}


def _misfits(config: Mapping[str, Any], family: Family, *, has_head: bool) -> Iterator[str]:
    """Yield what differs; later checks may rely on what earlier ones would have yielded."""
    architecture = family.stem + (SEQUENCE_CLASSIFIER if has_head else "Model")
    needed = list(_words(family).values())
    needed += [] if family.eps else ["layer_norm_eps"]
    needed += ["pad_token_id"] if family.counts_behind_padding else []
    known = SAY_NOTHING | _FIXED.keys() | {*needed, "pad_token_id"}
    yield from odd_words(config, {config["model_type"]: architecture}, known, _FIXED, needed)
    yield from _wrong_values(config, family)


def _wrong_values(config: Mapping[str, Any], family: Family) -> Iterator[str]:
    words = _words(family)
    yield from wrong_sizes(config, words.values(), words["hidden_size"], words["num_attention_heads"])
    if family.eps is None:
        yield from wrong_eps(config, "layer_norm_eps")
    if family.counts_behind_padding:
        padding = config["pad_token_id"]
        if type(padding) is not int or not 0 <= padding < config["max_position_embeddings"] - 1:
            yield f"pad_token_id is {padding!r}"
