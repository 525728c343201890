"""An adapter's directory is checked before anything is allocated; every refusal names what is wrong."""

from __future__ import annotations

import json
import os
import pickle
import struct

import pytest

from dormouse_worker.common.errors import AdapterInvalid, AdapterNotFound, PickleRefused
from dormouse_worker.files.adapter_config import parse_config
from dormouse_worker.files.adapter_files import CONFIG_FILE, WEIGHTS_FILE, Shape, check_adapter_files
from dormouse_worker.files.safetensors_files import read_raw_header

BASE = {f"model.layers.{i}.self_attn.{name}_proj": Shape(4, 6) for i in range(2) for name in ("q", "v")}
FIELDS = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}


def tensors_of(modules, rank=2, dtype="F32"):
    """Return names, types and shapes."""
    return {
        f"base_model.model.{name}.lora_{half}.weight": (dtype, shape)
        for name in modules
        for half, shape in (("A", [rank, 4]), ("B", [6, rank]))
    }


def write(directory, fields=None, tensors=None):
    directory.mkdir(exist_ok=True)
    (directory / CONFIG_FILE).write_text(json.dumps({**FIELDS, **(fields or {})}))
    header, end = {}, 0
    wanted = tensors_of(name for name in BASE if name.endswith("q_proj")) if tensors is None else tensors
    for name, (dtype, shape) in wanted.items():
        size = shape[0] * shape[1] * (4 if dtype == "F32" else 2 if dtype == "F16" else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    (directory / WEIGHTS_FILE).write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(end))
    return directory


def digest_of(found):
    return found.read(lambda *_: None)


def fill(file, byte):
    """Put other numbers into the file, of the same size, later."""
    header, raw = read_raw_header(file), file.read_bytes()
    file.write_bytes(header + byte * (len(raw) - len(header)))
    changed = file.stat().st_mtime_ns + 1
    os.utime(file, ns=(changed, changed))


def refusal(directory, error=AdapterInvalid, max_rank=8):
    with pytest.raises(error) as caught:
        check_adapter_files(directory, BASE, max_rank=max_rank, vocab_size=9)
    return str(caught.value)


def test_what_peft_writes_is_taken(tmp_path):
    found = check_adapter_files(write(tmp_path / "a"), BASE, max_rank=2)
    assert (found.rank, sorted(found.pairs)) == (2, [name for name in BASE if name.endswith("q_proj")])
    assert {pair.scale for pair in found.pairs.values()} == {2.0}


@pytest.mark.parametrize("written", [None, [], [8, 0]])
def test_an_invocation_is_part_of_an_adapter(tmp_path, written):
    directory = write(tmp_path, {"alora_invocation_tokens": written})
    assert check_adapter_files(directory, BASE, max_rank=8, vocab_size=9).invocation == tuple(written or ())


def test_patterns_give_modules_ranks_and_scales_of_their_own(tmp_path):
    names = [name for name in BASE if name.endswith("q_proj")]
    tensors = {**tensors_of(names[:1], rank=4), **tensors_of(names[1:])}
    fields = {"rank_pattern": {"0.self_attn.q_proj": 4}, "alpha_pattern": {names[1]: 6}, "use_rslora": True}
    found = check_adapter_files(write(tmp_path, fields, tensors), BASE, max_rank=4)
    assert [(pair.rank, pair.scale) for pair in found.pairs.values()] == [(4, 2.0), (2, 6 / 2**0.5)]
    assert found.rank == 4


def test_a_check_can_stop_at_every_tensor_and_module(tmp_path):
    """It is made between passes: a piece of it that lasts would go on beside one."""
    stops = []
    found = check_adapter_files(write(tmp_path), BASE, max_rank=8, pause=lambda: stops.append(1))
    assert len(stops) > 3 * len(found.pairs)


def test_the_digest_is_that_of_both_files(tmp_path):
    digests = {
        digest_of(check_adapter_files(write(tmp_path / name, fields), BASE, max_rank=8))
        for name, fields in (("a", {}), ("b", {}), ("c", {"lora_alpha": 5}))
    }
    assert len(digests) == 2


def test_the_digest_is_that_of_the_bytes_that_are_handed_over(tmp_path):
    directory = write(tmp_path)
    found = check_adapter_files(directory, BASE, max_rank=8)
    before, file, handed = digest_of(found), directory / WEIGHTS_FILE, []
    fill(file, b"1")
    digest = found.read(lambda _, raw: handed.append(bytes(raw)))
    assert digest == digest_of(check_adapter_files(directory, BASE, max_rank=8)) != before
    assert found.header + b"".join(handed) == file.read_bytes()
    assert handed[0].startswith(b"1")


def test_weights_that_change_while_they_are_read_are_refused(tmp_path):
    directory = write(tmp_path)
    found = check_adapter_files(directory, BASE, max_rank=8)
    with pytest.raises(AdapterInvalid, match="it changed while it was read"):
        found.read(lambda *_: fill(directory / WEIGHTS_FILE, b"2"))
    write(tmp_path, tensors=tensors_of(BASE))
    with pytest.raises(AdapterInvalid, match="it changed while it was read"):
        digest_of(found)


def test_weights_that_are_cut_off_before_they_are_read_are_refused(tmp_path):
    found = check_adapter_files(write(tmp_path), BASE, max_rank=8)
    file = tmp_path / WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(AdapterInvalid, match="cut off while it was read"):
        digest_of(found)
    file.unlink()
    with pytest.raises(AdapterInvalid, match="cannot be read"):
        digest_of(found)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; computed here are LORA, PROMPT_TUNING, P_TUNING, PREFIX_TUNING"),
        ({"r": 9}, "its rank is 9; max_lora_rank is 8"),
        ({"r": 0}, "r is 0"),
        ({"r": True}, "r is True"),
        ({"rank_pattern": {"q_proj": 16}}, "its rank is 16"),
        ({"rank_pattern": {"q_.*": 4}}, "not a pattern"),
        ({"rank_pattern": [4]}, "rank_pattern is a list"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ({"lora_alpha": 1e39}, "at most 1048576"),
        ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
        ({"rank_pattern": dict.fromkeys(map(str, range(2049)), 2)}, "rank_pattern has 2049 entries; at most 2048"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"alora_invocation_tokens": "<|check|>"}, "alora_invocation_tokens is '<|check|>'; a list of token ids"),
        ({"alora_invocation_tokens": [1, True]}, "alora_invocation_tokens is [1, True]"),
        ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens is [-1]"),
        ({"alora_invocation_tokens": [1] * 65}, "alora_invocation_tokens has 65 tokens; at most 64"),
        ({"alora_invocation_tokens": [1, 9]}, "has 9; allowed are ids below the base's vocabulary size 9"),
        ({"invocation_string": "<|check|>"}, "give its tokens as alora_invocation_tokens"),
        ({"target_parameters": ["experts.w1"]}, "experts are not adapted here"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base's weights"),
        ({"target_modules": []}, "target_modules is []"),
        ({"target_modules": ["q_proj", "up_proj"]}, "target_modules has 'up_proj', which is no linear layer"),
        ({"target_modules": ["q_proj", "v_proj"]}, "v_proj is among target_modules and has no weights"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path, fields, words):
    assert words in refusal(write(tmp_path, fields))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "has no tensors"),
        (tensors_of(["model.layers.0.mlp.up_proj"]), "no linear layer of the base's blocks"),
        (tensors_of(["model.layers.7.self_attn.q_proj"]), "no linear layer of the base's blocks"),
        (tensors_of(["model.layers.0.self_attn.q_proj"]), "model.layers.1.self_attn.q_proj is among target_modules"),
        (
            tensors_of(["model.layers.0.self_attn.q_proj"], rank=3),
            "lora_A of model.layers.0.self_attn.q_proj is [3, 4]",
        ),
        (tensors_of(["model.layers.0.self_attn.q_proj"], dtype="I8"), "of type I8"),
        ({"base_model.model.lm_head.weight": ("F32", [6, 4])}, "is none of a LoRA's"),
        ({"base_model.model.lm_head.lora_A.weight": ("F32", [2, 4])}, "is for 'lm_head', which is no linear layer of"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": ("F32", [2, 6])}, "adapts embeddings, which is not"),
        ({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": ("F32", [2, 4])}, "has no lora_B"),
    ],
    ids=str,
)
def test_weights_that_do_not_fit_the_base_are_refused_by_name(tmp_path, tensors, words):
    assert words in refusal(write(tmp_path, tensors=tensors))


def test_what_is_refused_at_length_is_told_in_short(tmp_path):
    names = [f"module_{number}" for number in range(10_000)]
    told = refusal(write(tmp_path, {"modules_to_save": names}))
    assert len(told) < 1100
    assert "modules_to_save is ['module_0'" in told
    assert told.endswith("whole modules are not replaced; merge them into the base model")
    assert "target_modules has 'module_0'" in refusal(write(tmp_path, {"target_modules": names}))


def test_a_target_is_looked_up_once_however_often_it_is_named():
    assert parse_config({**FIELDS, "target_modules": ["q_proj"] * 10_000}, 8).target_modules == ("q_proj",)


def test_empty_files_are_refused(tmp_path):
    (write(tmp_path) / WEIGHTS_FILE).write_bytes(b"")
    assert "truncated: 0 bytes" in refusal(tmp_path)
    (tmp_path / CONFIG_FILE).write_bytes(b"")
    assert "not readable as JSON" in refusal(tmp_path)


def test_a_pattern_of_targets_is_what_the_weights_say(tmp_path):
    found = check_adapter_files(write(tmp_path, {"target_modules": ".*q_proj"}), BASE, max_rank=8)
    assert len(found.pairs) == 2


def test_some_layers_alone_may_be_adapted(tmp_path):
    fields = {"layers_to_transform": [0]}
    found = check_adapter_files(write(tmp_path, fields, tensors_of(list(BASE)[:1])), BASE, max_rank=8)
    assert len(found.pairs) == 1


def test_files_that_are_missing_cut_off_or_too_large_are_refused(tmp_path):
    assert "no such directory" in refusal(tmp_path / "none", AdapterNotFound)
    whole = write(tmp_path / "a")
    weights = (whole / WEIGHTS_FILE).read_bytes()
    (whole / WEIGHTS_FILE).write_bytes(weights[:-1])
    assert "truncated" in refusal(whole)
    (whole / CONFIG_FILE).write_text("{")
    assert "not readable as JSON" in refusal(whole)
    (whole / CONFIG_FILE).write_text("[]")
    assert "a JSON object is needed" in refusal(whole)
    (whole / CONFIG_FILE).write_bytes(b" " * (1 << 20) + b"{}")
    assert "more than 1048576 bytes" in refusal(whole)
    (whole / CONFIG_FILE).unlink()
    assert "adapter_config.json is missing" in refusal(whole)


def test_a_pickle_is_never_opened(tmp_path):
    directory = write(tmp_path)
    (directory / WEIGHTS_FILE).unlink()
    (directory / "adapter_model.bin").write_bytes(pickle.dumps({}))
    assert "run code" in refusal(directory, PickleRefused)


def test_a_link_out_of_the_directory_is_not_followed(tmp_path):
    directory, other = write(tmp_path / "a"), write(tmp_path / "b")
    (directory / WEIGHTS_FILE).unlink()
    (directory / WEIGHTS_FILE).symlink_to(other / WEIGHTS_FILE)
    assert "a link out of the directory" in refusal(directory)
