"""What config.json says of a ModernBERT: gated blocks, layers that see all and layers that see what is near. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dormouse_worker.files.head_files import SEQUENCE_CLASSIFIER
from dormouse_worker.model.bare.config import odd_words, wrong_eps
from dormouse_worker.model.bare_pooling.decoders import root_of
from dormouse_worker.model.bare_pooling.gated import Attending, GatedConfig, GatedFamily, GatedNames
from dormouse_worker.model.bare_pooling.heads import HeadNames, Reads
from dormouse_worker.model.bare_pooling.words import SAY_NOTHING, wrong_rope, wrong_sizes
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.rope_kinds import PLAIN

KIND, _STEM = "modernbert", "ModernBert"
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "local_attention",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)
_FIXED: Mapping[str, object] = MappingProxyType(  # other values are transformers' to compute
    {
        "attention_bias": False,
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "hidden_activation": "gelu",
        "mlp_bias": False,
        "norm_bias": False,
    }
)
_IGNORED = frozenset(  # by transformers, too, or of tasks that are none of ours
    {
        "cls_token_id",
        "decoder_bias",
        "deterministic_flash_attn",
        "embedding_dropout",
        "initializer_cutoff_factor",
        "layer_norm_eps",
        "mlp_dropout",
        "pad_token_id",
        "position_embedding_type",
        "reference_compile",
        "repad_logits_with_grad",
        "sep_token_id",
        "sparse_pred_ignore_index",
        "sparse_prediction",
    }
)
_ALL, _NEAR = "full_attention", "sliding_attention"
_THETAS = {_ALL: "global_rope_theta", _NEAR: "local_rope_theta"}  # as older files say them
_EVERY = "global_attn_every_n_layers"  # as older files say which layers see all
_READ = frozenset({*_SIZES, *_FIXED, *_THETAS.values(), _EVERY, "layer_types", "norm_eps", "rope_parameters"})
_READS: Mapping[str, Reads] = MappingProxyType({"cls": "first", "mean": "mean"})
_FAMILY = GatedFamily(
    GatedNames(
        words="embeddings.tok_embeddings",
        begins="layers.{}.",
        query="attn.Wqkv",
        key="attn.Wqkv",
        value="attn.Wqkv",
        attended="attn.Wo",
        gate="mlp.Wi",
        other="mlp.Wi",
        narrow="mlp.Wo",
        attention_norm="attn_norm",
        block_norm="mlp_norm",
        last_norm="final_norm",
        words_norm="embeddings.norm",
    ),
    gate="gelu",
    norms_first_layer=False,
)
_UNREAD = frozenset({"decoder.bias", "decoder.weight", "head.dense.weight", "head.norm.weight"})  # for masked words


def read_modern(config: Mapping[str, Any], names: Collection[str], *, has_head: bool = False) -> GatedConfig | Unfit:
    """Return the sizes, or why transformers has to read this; `names` are those of the files' tensors."""
    if (reason := next(_misfits(config, has_head=has_head), None)) is not None:
        return Unfit(reason)
    heads = config["num_attention_heads"]
    near = config["local_attention"] // 2 + 1
    ways = tuple(
        Attending(_rope(config, kind), window) for kind, window in zip((_ALL, _NEAR), (None, near), strict=True)
    )
    return GatedConfig(
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        max_position_embeddings=config["max_position_embeddings"],
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=config["vocab_size"],
        head_size=config["hidden_size"] // heads,
        eps=float(config["norm_eps"]),
        ways=ways,
        layers=tuple(int(kind == _NEAR) for kind in _layer_types(config)),
        family=_FAMILY,
        root=root_of(names),
        head=_head(config),
        unread=_UNREAD,
    )


def _head(config: Mapping[str, Any]) -> HeadNames:
    reads = _READS[config.get("classifier_pooling", "cls")]
    return HeadNames("head.dense", "gelu", "classifier", norm="head.norm", reads=reads, has_dense_bias=False)


def _misfits(config: Mapping[str, Any], *, has_head: bool) -> Iterator[str]:
    """Yield what differs; later checks may rely on what earlier ones would have yielded."""
    said, ends = config.get("architectures"), (SEQUENCE_CLASSIFIER,) if has_head else ("Model", "ForMaskedLM")
    end = next((end for end in ends if said == [_STEM + end]), ends[0])
    known = SAY_NOTHING | _IGNORED | _READ | {"classifier_pooling"}
    needed = (*_SIZES, "norm_eps", *(("classifier_pooling",) if has_head else ()))
    yield from odd_words(config, {KIND: _STEM + end}, known, _FIXED, needed)
    yield from wrong_sizes(config, _SIZES)
    yield from wrong_eps(config, "norm_eps")
    if config.get("classifier_pooling", "cls") not in list(_READS):  # it may be anything
        yield f"classifier_pooling is {config['classifier_pooling']!r}"
    types = _layer_types(config)
    if len(types) != config["num_hidden_layers"] or set(types) - _THETAS.keys():
        yield "its layers attend in several ways"
    for kind in _THETAS:
        yield from wrong_rope(_rope(config, kind), config["hidden_size"] // config["num_attention_heads"])


def _layer_types(config: Mapping[str, Any]) -> Sequence[Any]:
    """Return how each layer attends, as newer or as older files say it; () where it is not clear."""
    said, every = config.get("layer_types"), config.get(_EVERY)
    if said is not None:
        return said if isinstance(said, list) and all(isinstance(kind, str) for kind in said) else ()
    if type(every) is not int or every < 1:
        return ()
    return [_NEAR if layer % every else _ALL for layer in range(config["num_hidden_layers"])]


def _rope(config: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the parameters of a kind of layers, as newer or as older files say them; none where it is not clear."""
    newer = config.get("rope_parameters")
    if newer is None:
        return {"rope_type": PLAIN, "rope_theta": config.get(_THETAS[kind])}
    rope = newer.get(kind) if isinstance(newer, Mapping) else None
    return {"rope_type": PLAIN, **rope} if isinstance(rope, Mapping) else {}
