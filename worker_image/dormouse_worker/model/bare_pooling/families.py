"""The families of encoders with learned positions: what they and their tensors are called. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dormouse_worker.model.bare_pooling.heads import HeadNames

EMBEDDED = ("word_embeddings", "position_embeddings", "token_type_embeddings")


@dataclass(frozen=True, slots=True)
class LayerNames:
    """What the parts of a layer are called, behind what all of them begin with."""

    begins: str  # with a place for the layer's number
    query: str
    key: str
    value: str
    attended: str
    attended_norm: str
    wide: str
    narrow: str
    norm: str


@dataclass(frozen=True, slots=True)
class Family:
    """Encoders with learned positions, norms behind the blocks and GELU."""

    stem: str  # of its architectures: BertModel, BertForSequenceClassification
    root: str  # what the encoder's names begin with in a classifier's files
    layer: LayerNames
    head: HeadNames
    words: Mapping[str, str] = field(default_factory=dict)  # of config.json for sizes that it calls otherwise
    eps: float | None = None  # of its norms, where config.json does not say it
    counts_behind_padding: bool = False  # a text's first position is the one behind the padding token's id
    has_kinds: bool = True  # of tokens, for pairs

    def word(self, size: str) -> str:
        """Return what config.json calls a size."""
        return self.words.get(size, size)


_BERT = LayerNames(
    begins="encoder.layer.{}.",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attended="attention.output.dense",
    attended_norm="attention.output.LayerNorm",
    wide="intermediate.dense",
    narrow="output.dense",
    norm="output.LayerNorm",
)
_DISTILBERT = LayerNames(
    begins="transformer.layer.{}.",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attended="attention.out_lin",
    attended_norm="sa_layer_norm",
    wide="ffn.lin1",
    narrow="ffn.lin2",
    norm="output_layer_norm",
)
_ROBERTA_HEAD = HeadNames("classifier.dense", "tanh", "classifier.out_proj")


def _roberta(stem: str) -> Family:
    return Family(stem, "roberta.", _BERT, _ROBERTA_HEAD, counts_behind_padding=True)


FAMILIES: Mapping[str, Family] = MappingProxyType(  # by model_type
    {
        "bert": Family("Bert", "bert.", _BERT, HeadNames("bert.pooler.dense", "tanh", "classifier")),
        "camembert": _roberta("Camembert"),
        "distilbert": Family(
            "DistilBert",
            "distilbert.",
            _DISTILBERT,
            HeadNames("pre_classifier", "relu", "classifier"),
            words=MappingProxyType(
                {
                    "hidden_size": "dim",
                    "intermediate_size": "hidden_dim",
                    "num_attention_heads": "n_heads",
                    "num_hidden_layers": "n_layers",
                }
            ),
            eps=1e-12,
            has_kinds=False,
        ),
        "roberta": _roberta("Roberta"),
        "xlm-roberta": _roberta("XLMRoberta"),
    }
)
