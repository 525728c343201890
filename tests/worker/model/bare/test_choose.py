"""An engine has torch unless nothing that is asked of it needs torch."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import GENERATE, TRANSCRIBE
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.without_torch import why_torch
from dormouse_worker.native.library import Missing, load_kernels


def why(directory, task=GENERATE, kernels=None, **settings):
    load_format = settings.get("load_format", "auto")
    files = check_model_files(directory, load_format)
    return why_torch(EngineSettings(model=str(directory), **settings), task, files, kernels or load_kernels())


@pytest.fixture
def copied(model_of, tmp_path):
    """Return a model that the test may change."""
    shutil.copytree(model_of(), tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_families_need_none_as_their_files_are(model_of, architecture, dtype):
    assert why(model_of(architecture, dtype)) is None
    assert why(model_of(architecture, dtype), model_impl="lean", attention_backend="native", dtype=dtype) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"engine_runtime": "torch"},
        {"device": "cuda"},
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"load_format": "dummy"},
        {"model_impl": "transformers"},
        {"attention_backend": "sdpa"},
        {"enable_lora": True},
        {"speculation_method": "draft"},
        {"worker_cls": "own.Worker"},
        {"worker_extension_cls": "own.Extension"},
    ],
    ids=str,
)
def test_each_setting_that_only_torch_knows_is_named(model_of, settings):
    (name,) = settings
    assert why(model_of(), **settings) == f"{name} asks for it"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_are_rounded_without_torch_unless_a_sum_would_not_hold_their_products(
    model_of, monkeypatch, quantization
):
    assert why(model_of(), quantization=quantization) is None
    monkeypatch.setattr("dormouse_worker.model.bare.choose.MOST_INPUTS", 47)
    assert why(model_of(), quantization=quantization) == "a map of its layers has more than 47 inputs"
    assert why(model_of()) is None


def test_so_is_what_the_model_is_for_and_a_lack_of_kernels(model_of):
    assert why(model_of(), TRANSCRIBE) == "task asks for it"
    assert why(model_of(), kernels=Missing("nobody compiled them")) == "nobody compiled them"


def test_weights_of_another_type_than_is_computed_in_are_converted_by_torch(model_of, copied):
    assert why(model_of(), dtype="bfloat16").endswith("not BF16 [260, 32]")
    assert why(model_of(), dtype="float16") == "its type is float16"
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({name: config[name] for name in config if name != "dtype"}))
    assert why(copied) == "its type is not told"


def test_what_is_wrong_with_a_model_is_for_transformers_to_say(model_of, copied):
    assert why(model_of(), max_model_len=129) == "max_model_len is above the model's limit"
    tensors = load_file(copied / "model.safetensors")
    for change in ({"odd": torch.zeros(3)}, {"model.norm.weight": torch.zeros(3)}):
        save_file({**tensors, **change}, copied / "model.safetensors", metadata={"format": "pt"})
        assert next(iter(change)) in why(copied)
    save_file({"model.norm.weight": torch.zeros(32)}, copied / "model.safetensors", metadata={"format": "pt"})
    assert "lm_head.weight" in why(copied)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "odd": 1}))
    assert "says odd" in why(copied)
