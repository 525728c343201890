"""Our settings in vLLM's words."""

from __future__ import annotations

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.knobs import KNOBS
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.foreign.vllm.options import ALLOWED, TAKEN, check_vllm_settings, engine_options, variables
from tests.operator_.test_engine_settings import OTHER, READ_AS

REFUSED = {name: READ_AS.get(name, value) for name, value in OTHER.items() if name not in TAKEN} | {
    "task": "embed",
    "load_format": "sharded_state",
    "device": "cuda",
    "kv_store_dir": "/store",
    "attention_backend": "sdpa",
    "engine_runtime": "torch",
    "worker_cls": "my.Worker",
    "model_impl": "lean",
    "device_memory_budget_bytes": 1,
}


def settings(**words):
    return EngineSettings(**{"model": "/models/tiny", "runtime": "vllm", **words})


def test_every_name_is_a_setting():
    assert {*TAKEN, *ALLOWED} <= KNOBS.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_what_vllm_is_not_given_is_refused_by_field_value_and_limit(name):
    with pytest.raises(InvalidSettings, match=f"^{name} is .*; with runtime 'vllm' allowed is "):
        check_vllm_settings(settings(**{name: REFUSED[name]}))


def test_a_gguf_file_is_refused():
    with pytest.raises(InvalidSettings, match=r"model is /models/tiny\.gguf"):
        check_vllm_settings(settings(model="/models/tiny.gguf"))


def test_what_both_know_keeps_its_name():
    words = {"dtype": "bfloat16", "max_num_seqs": 7, "max_num_batched_tokens": 99, "seed": 3, "max_model_len": 300}
    check_vllm_settings(settings(**words))
    assert engine_options(settings(**words), can_compile=True).items() >= words.items()


def test_what_is_left_open_is_vllms_own_choice():
    assert not {"max_model_len", "block_size"} & engine_options(settings(), can_compile=True).keys()
    assert engine_options(settings(block_size=64), can_compile=True)["block_size"] == 64


def test_without_a_compiler_nothing_is_compiled():
    assert engine_options(settings(), can_compile=False)["enforce_eager"]
    assert not engine_options(settings(), can_compile=True)["enforce_eager"]


def test_variables_of_the_user_stay_but_for_the_one_that_keeps_the_engine_here():
    inherited = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    found = variables(settings(profile_cache="/cache"), inherited, [0, 2])
    assert "VLLM_LOGGING_LEVEL" not in found
    assert found["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "0,2"
    assert (found["VLLM_CACHE_ROOT"], found["TORCHINDUCTOR_CACHE_DIR"]) == ("/cache/vllm", "/cache/inductor")
    assert "VLLM_CACHE_ROOT" not in variables(settings(), {}, [0])
