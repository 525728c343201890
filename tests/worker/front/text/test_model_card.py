"""What the front reads from a model's directory."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.errors import ModelInvalid, ModelNotFound
from dormouse_worker.front.requests.sampling import Prepared, to_sampling
from dormouse_worker.front.requests.validation import check_effective
from dormouse_worker.front.testing import EOS, VOCAB_SIZE, engine_settings, write_model
from dormouse_worker.front.text.model_card import SamplingDefaults, read_model_card


def write_config(path, **config):
    (path / "config.json").write_text(json.dumps(config))


def write_weights(path, *, name="w", size=4):
    header = json.dumps({name: {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * size)


def digest_of(path):
    return read_model_card(engine_settings(path, load_format="auto")).digest


def test_the_card_of_a_plain_decoder(tmp_path):
    card = read_model_card(engine_settings(write_model(tmp_path), max_model_len=0))
    assert (card.architecture, card.vocab_size, card.max_model_len, card.dtype) == (
        "LlamaForCausalLM",
        260,
        128,
        "float32",
    )
    assert (card.num_layers, card.num_attention_heads, card.num_kv_heads) == (2, 4, 2)
    assert card.eos_token_ids == (EOS,)
    assert card.defaults == SamplingDefaults()


def test_settings_go_before_the_models_own(tmp_path):
    card = read_model_card(engine_settings(write_model(tmp_path), max_model_len=17, dtype="bfloat16"))
    assert (card.max_model_len, card.dtype) == (17, "bfloat16")


def test_a_models_text_part_and_older_names_are_understood(tmp_path):
    write_model(tmp_path)
    write_config(tmp_path, text_config={"vocab_size": 9, "num_hidden_layers": 3, "torch_dtype": "float16"})
    card = read_model_card(engine_settings(tmp_path))
    assert (card.vocab_size, card.num_layers, card.dtype) == (9, 3, "float16")
    write_config(tmp_path, vocab_size=8, n_layer=5, n_head=6, n_positions=7)
    card = read_model_card(engine_settings(tmp_path, max_model_len=0))
    assert (card.num_layers, card.num_attention_heads, card.num_kv_heads, card.max_model_len) == (5, 6, 6, 7)


def test_generation_config_gives_defaults_and_all_end_tokens(tmp_path):
    numbers = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    generation = {**numbers, "eos_token_id": [EOS, 3], "do_sample": True}
    card = read_model_card(engine_settings(write_model(tmp_path, generation=generation)))
    assert card.defaults == SamplingDefaults(**numbers)
    sampling = to_sampling(pb.SamplingParams(stop_token_ids=[3, 4]), card, Prepared(5, drawn_seed=11))
    assert {name: getattr(sampling, name) for name in numbers} == numbers
    assert sampling.seed == 11
    assert sampling.stop_token_ids == (3, 4, EOS)


def test_what_the_request_sets_goes_before_the_defaults_even_if_it_is_zero(tmp_path):
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    card = read_model_card(engine_settings(write_model(tmp_path, generation=generation)))
    params = pb.SamplingParams(temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=1, seed=0, ignore_eos=True)
    sampling = to_sampling(params, card, Prepared(5, drawn_seed=11))
    assert (sampling.top_p, sampling.min_p, sampling.repetition_penalty) == (1, 0, 1)
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.stop_token_ids) == (0, 0, 0, ())
    assert sampling.logprobs is None


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("top_p", 7.0, "above 0 and at most 1"),
        ("top_p", float("nan"), "above 0 and at most 1"),
        ("temperature", -1, "a finite number of at least 0"),
        ("temperature", float("inf"), "a finite number of at least 0"),
        ("min_p", 2, "from 0 to 1"),
        ("repetition_penalty", 0.0, "above 0 and at most"),
        ("top_k", float("inf"), "a finite number"),
        ("top_k", 10**400, "a finite number"),
        ("temperature", -(10**400), "a finite number"),
    ],
)
def test_a_default_outside_its_limits_is_left_out_and_named_and_the_model_serves(
    tmp_path, caplog, name, value, allowed
):
    card = read_model_card(engine_settings(write_model(tmp_path, generation={name: value})))
    assert card.defaults == SamplingDefaults()
    check_effective(to_sampling(pb.SamplingParams(), card, Prepared(1, drawn_seed=0)))
    words = (str(tmp_path / "generation_config.json"), f"{name} is {value}", f"allowed: {allowed}", "is not used")
    assert [word for word in words if word not in caplog.text] == []


def test_bad_defaults_never_reach_the_engine(tmp_path):
    card = read_model_card(engine_settings(write_model(tmp_path)))
    bad = replace(card, defaults=SamplingDefaults(top_p=7))
    with pytest.raises(CallError, match=r"generation_config\.json"):
        check_effective(to_sampling(pb.SamplingParams(), bad, Prepared(1, drawn_seed=0)))


def test_defaults_that_are_no_numbers_are_passed_over_and_a_negative_top_k_means_all(tmp_path):
    generation = {"temperature": "hot", "top_p": None, "top_k": -1, "eos_token_id": "x"}
    card = read_model_card(engine_settings(write_model(tmp_path, generation=generation)))
    assert card.defaults == SamplingDefaults()
    assert card.eos_token_ids == (EOS,)


def test_the_digest_changes_with_every_file_that_matters_and_with_no_other(tmp_path):
    write_weights(write_model(tmp_path))
    seen = {digest_of(tmp_path)}
    (tmp_path / "README.md").write_text("words")
    assert digest_of(tmp_path) in seen
    for change in (
        lambda: write_weights(tmp_path, name="v"),
        lambda: write_weights(tmp_path, size=8),
        lambda: (tmp_path / "chat_template.jinja").write_text("x"),
        lambda: (tmp_path / "tokenizer_config.json").write_text("{}"),
        lambda: write_config(tmp_path, vocab_size=VOCAB_SIZE),
    ):
        change()
        assert digest_of(tmp_path) not in seen
        seen.add(digest_of(tmp_path))


def test_the_digest_does_not_depend_on_the_place(tmp_path):
    write_weights(write_model(tmp_path / "a"))
    write_weights(write_model(tmp_path / "b"))
    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b")


def test_a_missing_directory_and_a_broken_file_are_named(tmp_path):
    with pytest.raises(ModelNotFound, match="nowhere"):
        read_model_card(engine_settings(tmp_path / "nowhere"))
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(ModelInvalid, match="generation_config"):
        read_model_card(engine_settings(tmp_path))
