"""What config.json says of a Nomic BERT as transformers writes it: norms stand behind its gated blocks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from dormouse_worker.model.bare.config import odd_words, wrong_eps
from dormouse_worker.model.bare_pooling.gated import Attending, GatedConfig, GatedFamily, GatedNames
from dormouse_worker.model.bare_pooling.heads import HeadNames
from dormouse_worker.model.bare_pooling.words import SAY_NOTHING, SIZES, wrong_rope, wrong_sizes
from dormouse_worker.model.lean.unfit import Unfit

KIND, _ARCHITECTURE = "nomic_bert", "NomicBertModel"
_FIXED: Mapping[str, object] = MappingProxyType({"hidden_act": "silu"})
_ROPE = "rope_parameters"
_FAMILY = GatedFamily(
    GatedNames(  # of the files: transformers has others for its modules
        words="embeddings.word_embeddings",
        begins="encoder.layers.{}.",
        query="attn.Wqkv",
        key="attn.Wqkv",
        value="attn.Wqkv",
        attended="attn.out_proj",
        gate="mlp.fc12",
        other="mlp.fc11",
        narrow="mlp.fc2",
        attention_norm="norm1",
        block_norm="norm2",
        last_norm=None,
        words_norm="emb_ln",
        kinds="embeddings.token_type_embeddings",
    ),
    gate="silu",
    has_norm_biases=True,
    norms_first=False,
)
_NO_HEAD = HeadNames(None, "tanh", "classifier")


def read_nomic(config: Mapping[str, Any], names: Collection[str], *, has_head: bool = False) -> GatedConfig | Unfit:
    """Return the sizes, or why transformers has to read this."""
    del names  # they begin as the family's do
    if has_head:
        return Unfit(f"the head of a {KIND} is transformers'")
    if (reason := next(_misfits(config), None)) is not None:
        return Unfit(reason)
    heads = config["num_attention_heads"]
    return GatedConfig(
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        max_position_embeddings=config["max_position_embeddings"],
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=config["vocab_size"],
        type_vocab_size=config["type_vocab_size"],
        head_size=config["hidden_size"] // heads,
        eps=float(config["layer_norm_eps"]),
        ways=(Attending(config[_ROPE]),),
        layers=(0,) * config["num_hidden_layers"],
        family=_FAMILY,
        root="",
        head=_NO_HEAD,
    )


def _misfits(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs; later checks may rely on what earlier ones would have yielded."""
    known = SAY_NOTHING | _FIXED.keys() | {*SIZES, _ROPE, "head_dim", "layer_norm_eps", "pad_token_id"}
    yield from odd_words(config, {KIND: _ARCHITECTURE}, known, _FIXED, (*SIZES, "layer_norm_eps", _ROPE))
    yield from wrong_sizes(config, SIZES)
    yield from wrong_eps(config, "layer_norm_eps")
    size, rope = config["hidden_size"] // config["num_attention_heads"], config[_ROPE]
    if config.get("head_dim") not in (None, size):
        yield f"head_dim is {config['head_dim']!r}"
    yield from wrong_rope(rope if isinstance(rope, Mapping) else {}, size)
