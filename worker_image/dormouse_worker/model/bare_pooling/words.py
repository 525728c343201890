"""Words of config.json that several families of encoders have, and what is wrong with their values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dormouse_worker.model.bare.config import MOST_ROPE
from dormouse_worker.model.rope_kinds import PLAIN
from dormouse_worker.native.abi import MAX_HEAD_SIZE

SIZES = (  # of encoders whose tokens are of kinds
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)
SAY_NOTHING = frozenset(  # of what a pass computes
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


def wrong_sizes(
    config: Mapping[str, Any],
    words: Iterable[str],
    hidden: str = "hidden_size",
    heads: str = "num_attention_heads",
) -> Iterator[str]:
    """Yield which of these words, that are all there, is no size; and where heads do not share the hidden size."""
    for word in words:
        if type(config[word]) is not int or config[word] < 1:
            yield f"{word} is {config[word]!r}"
    size, rest = divmod(config[hidden], config[heads])
    if rest or size > MAX_HEAD_SIZE:
        yield f"{config[heads]} heads share a hidden size of {config[hidden]}"


def wrong_rope(rope: Mapping[str, Any], head_size: int) -> Iterator[str]:
    """Yield where these parameters are not those of a plain rotary embedding of heads of that size."""
    theta = rope.get("rope_theta")
    if rope.keys() != {"rope_theta", "rope_type"} or rope["rope_type"] != PLAIN:
        yield f"its positions are no rotary embedding of type {PLAIN}"
    if not isinstance(theta, int | float) or isinstance(theta, bool) or not 1 / MOST_ROPE < theta < MOST_ROPE:
        yield f"rope_theta is {theta!r}"
    if head_size % 2:
        yield f"its heads have {head_size} numbers"
