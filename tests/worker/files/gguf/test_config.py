"""What config.json says of a file's keys: as transformers reads the same file, or a refusal by name."""

import json
import math

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.gguf.config import ARCHITECTURES, config_of, generation_config_of
from dormouse_worker.files.gguf.facts import Facts
from dormouse_worker.files.gguf.header import read_gguf
from tests.worker.files.gguf.kit import BYTE_LEVEL, KINDS, LLAMA, TOKENS, llama_tensors, write

COMMON = {name.partition(".")[2]: value for name, value in LLAMA.items()}
OWN = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"attention.key_length": 16},
    "gemma2": {"attention.key_length": 16, "attention.sliding_window": 8},
    "gemma3": {"attention.key_length": 16, "attention.sliding_window": 8},
}


@pytest.fixture
def facts(tmp_path):
    """Return a function (keys, tensors, architecture) → facts of a file."""

    def make(keys=None, tensors=None, architecture="llama"):
        said = {f"{architecture}.{name}": value for name, value in (COMMON | OWN.get(architecture, {})).items()}
        said = {name: value for name, value in (said | BYTE_LEVEL | (keys or {})).items() if value is not None}
        write(tmp_path / "m.gguf", said, tensors or llama_tensors(), architecture=architecture)
        return Facts(read_gguf(tmp_path / "m.gguf"))

    return make


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_agrees_with_what_transformers_reads_of_the_file(facts, tmp_path, architecture):
    made = config_of(facts(architecture=architecture))
    (tmp_path / "config.json").write_text(json.dumps(made))
    ours, theirs = AutoConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert type(ours) is type(theirs)
    beside = {"architectures", "dtype", "_name_or_path", "bos_token_id", "eos_token_id", "pad_token_id", "head_dim"}
    beside |= {"query_pre_attn_scalar"} if "gemma" in architecture else set()  # transformers keeps its default
    said, wanted = ({k: v for k, v in one.to_dict().items() if k not in beside} for one in (ours, theirs))
    assert said == wanted | {"rms_norm_eps": 1e-5}  # as somebody wrote it
    assert made["head_dim"] == OWN[architecture].get("attention.key_length", 8)


def test_numbers_are_those_that_somebody_wrote(facts):
    made = config_of(facts({"llama.attention.layer_norm_rms_epsilon": 1e-6}))
    assert (made["rms_norm_eps"], made["vocab_size"], made["tie_word_embeddings"]) == (1e-6, len(TOKENS), True)
    assert made["dtype"] == "float32"


@pytest.mark.parametrize(("layers", "scalar"), [(62, 8), (26, 16)])
def test_only_queries_of_the_largest_gemma_are_scaled_by_its_width(facts, layers, scalar):
    assert config_of(facts({"gemma3.block_count": layers}, architecture="gemma3"))["query_pre_attn_scalar"] == scalar


def test_gemmas_windows_and_caps_are_those_that_the_file_tells(facts):
    keys = {"gemma2.attn_logit_softcapping": 20.0, "gemma2.block_count": 3}
    made = config_of(facts(keys, architecture="gemma2"))
    assert (made["attn_logit_softcapping"], made["final_logit_softcapping"]) == (20.0, 30.0)
    assert made["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_frequencies_of_llama_3_are_found_again(facts, factor):
    way = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    way |= {"original_max_position_embeddings": 8192, "rope_theta": 5e5}
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=way)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 5e5 ** (-torch.arange(0, 128, 2, dtype=torch.float32) / 128)
    tensors = {**llama_tensors(), "rope_freqs.weight": (plain / scaled).numpy()}
    keys = {"llama.rope.freq_base": 5e5, "llama.attention.key_length": 128, "llama.rope.dimension_count": 128}
    assert config_of(facts({**keys, "llama.attention.value_length": 128}, tensors))["rope_parameters"] == way


@pytest.mark.parametrize("odd", [3.0, -1.0, math.nan])
def test_other_frequencies_are_refused(facts, odd):
    tensors = {**llama_tensors(), "rope_freqs.weight": np.array([1, odd, 1, 1.5], np.float32)}
    with pytest.raises(ModelInvalid, match=r"tensor rope_freqs\.weight (is not what Llama 3|has a number)"):
        config_of(facts(tensors=tensors))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"llama.embedding_length": None}, "has no llama.embedding_length, which is needed"),
        ({"llama.embedding_length": "x"}, "llama.embedding_length is 'x'; a whole number is needed"),
        ({"llama.attention.head_count_kv": [1, 2]}, "llama.attention.head_count_kv is .*; a whole number is needed"),
        ({"llama.rope.freq_base": "x"}, "llama.rope.freq_base is 'x'; a number is needed"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type is 'yarn'; read are none and linear"),
        ({"llama.rope.scaling.type": 1}, "llama.rope.scaling.type is '1'; a string is needed"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count is 4, and heads of 8"),
        ({"llama.expert_count": 8}, "llama.expert_count is above 0: experts are not read"),
        ({"llama.logit_scale": 2.0}, "llama.logit_scale is nothing that is read of this architecture"),
    ],
)
def test_what_is_missing_or_unknown_is_named(facts, keys, message):
    with pytest.raises(ModelInvalid, match=message):
        config_of(facts(keys))


def test_other_architectures_are_refused_by_name(facts):
    with pytest.raises(
        ModelInvalid, match=r"general\.architecture is 'mamba'; read are llama, qwen2, qwen3, gemma2, gemma3"
    ):
        config_of(facts(architecture="mamba"))


def test_a_model_without_an_embedding_is_refused(facts):
    with pytest.raises(ModelInvalid, match=r"has no tensor token_embd\.weight"):
        config_of(facts(tensors={"output_norm.weight": np.ones(32, np.float32)}))


def test_odd_heads_of_qwen2_are_refused(facts):
    with pytest.raises(ModelInvalid, match=r"qwen2\.attention.key_length is not 32 / 4"):
        config_of(facts({"qwen2.attention.key_length": 16}, architecture="qwen2"))


def test_positions_may_be_scaled_evenly(facts):
    made = config_of(facts({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}))
    assert made["rope_parameters"] == {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}


def test_an_answer_ends_with_each_token_that_llama_cpp_knows(facts):
    assert generation_config_of(facts()) == {"bos_token_id": 1, "eos_token_id": [2, 0]}
    assert generation_config_of(facts({"tokenizer.ggml.eot_token_id": 7}))["eos_token_id"] == [2, 7, 0]
    plain = facts({"tokenizer.ggml.token_type": [1] * len(KINDS), "tokenizer.ggml.eos_token_id": None})
    assert "eos_token_id" not in generation_config_of(plain)


def test_a_flag_is_a_flag(facts):
    with pytest.raises(ModelInvalid, match="x is '1'; true or false is needed"):
        facts({"x": 1}).flag("x", default=False)
    with pytest.raises(ModelInvalid, match="x is '1'; an array of strings is needed"):
        facts({"x": 1}).texts("x")
    with pytest.raises(ModelInvalid, match="x is '1'; an array of numbers is needed"):
        facts({"x": 1}).numbers("x", "i")
    assert gguf.GGUF_VERSION == 3
