"""A model that reads sound, through all of a worker's life: places, sleeps, damage, what it is not combined with.

Tokens are those of transformers' `generate` in float32, window after window.
"""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import (
    InsufficientMemory,
    InvalidArgument,
    InvalidSettings,
    LogitsNotFinite,
    ModelChanged,
    ModelInvalid,
)
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddWindow, WindowParams
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.files.speech_files import read_speech
from dormouse_worker.model.testing_speech import RATE_HZ, heard, write_whisper
from tests.worker.executor.speech_kit import PLACES, Listener, noise, start


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model's directory that nobody changes."""
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
def make(tmp_path):
    """Return a function that makes executors, shut down after the test."""
    made = []

    def made_of(path, **settings):
        fields = {"model": str(path), "threads": 1, "max_num_seqs": PLACES, "dtype": "float32"}
        fields |= {"image_dir": str(tmp_path), **settings}
        made.append(SingleProcessExecutor(EngineSettings(**fields), {}, Host()))
        return made[-1]

    yield made_of
    for executor in made:
        executor.shutdown()


@pytest.fixture
def listener(model, make, tmp_path):
    return Listener(start(make(model)), model, tmp_path)


@pytest.mark.parametrize("task", ["transcribe", "translate"])
@pytest.mark.parametrize("sound", [noise(2), noise(9), np.zeros(2 * RATE_HZ, np.float32)], ids=["2s", "9s", "silence"])
def test_tokens_are_those_of_transformers(listener, model, sound, task):
    wanted = heard(model, sound, language="en", task=task, temperature=0.0)
    assert listener.hear(sound, task) == [one["tokens"].tolist() for one in wanted]


def test_silence_and_poor_windows_are_those_of_transformers(listener, model):
    thresholds = {"no_speech_threshold": 0.0, "logprob_threshold": 0.0, "compression_ratio_threshold": 0.0}
    wanted = heard(model, noise(3), language="en", task="transcribe", temperature=(0.0,), **thresholds)
    assert listener.hear(noise(3), **thresholds) == [one["tokens"].tolist() for one in wanted] == []


def test_a_language_is_the_one_that_transformers_finds(listener, model):
    sound = noise(2)
    frames = listener.features(sound, sampling_rate=RATE_HZ, return_tensors="np")["input_features"][0].T
    output = listener.window(frames, "transcribe", languages=listener.spec.languages.values())
    code = next(code for code, token in listener.spec.languages.items() if token == output.language_id)
    wanted = heard(model, sound, language=code, task="transcribe", temperature=0.0)
    undetected = heard(model, sound, task="transcribe", temperature=0.0)
    assert [one["tokens"].tolist() for one in undetected] == [one["tokens"].tolist() for one in wanted]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", ["tiny", "base"])
def test_tokens_of_openais_shapes_are_those_of_transformers(make, tmp_path, shape):
    path = write_whisper(tmp_path / "model", shape)
    listener = Listener(start(make(path, threads=2)), path, tmp_path)
    for sound in (noise(30), noise(180), np.zeros(30 * RATE_HZ, np.float32)):
        wanted = heard(path, sound, language="en", task="transcribe", temperature=0.0)
        assert listener.hear(sound) == [one["tokens"].tolist() for one in wanted]


@pytest.mark.parametrize("level", [1, 2])
def test_the_same_is_heard_after_a_sleep_and_asleep_nothing_is_held(listener, level):
    executor = listener.engine._executor
    before = listener.hear(noise(2))
    report = executor.sleep(level, TAGS)
    assert report.freed_bytes > 0
    with pytest.raises(InvalidArgument, match="kept_blocks has 1"):
        executor.sleep(1, TAGS, [1])
    executor.wake_up(TAGS)
    assert listener.hear(noise(2)) == before


def test_other_weights_after_a_sleep_are_found(tmp_path, make):
    path = write_whisper(tmp_path / "model")
    executor = start(make(path))
    executor.sleep(2, TAGS)
    tensors = load_file(path / "model.safetensors")
    tensors["model.decoder.layers.0.fc1.weight"] *= 1.5
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelChanged, match=r"fc1\.weight is not what was loaded"):
        executor.wake_up(TAGS)


def test_a_model_that_says_something_else_is_found(listener):
    executor = listener.engine._executor
    executor.verify()
    worker = executor._wrapper._worker
    worker.loaded().network.module.model.decoder.layer_norm.bias.data.add_(1)
    assert "GoldenTokensDiffer: golden token 1" in listener.engine.verify(executor)


def test_weights_that_are_no_numbers_are_found_at_the_start(tmp_path, make):
    path = write_whisper(tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    tensors["model.decoder.layer_norm.bias"][0] = torch.nan
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises((LogitsNotFinite, ModelInvalid)):
        start(make(path))


def test_windows_that_are_none_end_alone(listener, tmp_path):
    (tmp_path / "w").write_bytes(b"short")
    params = WindowParams(max_tokens=4, bytes_per_token=2)
    listener.engine.add(AddWindow("a", "w", [listener.spec.start], params))
    assert "its file has 5 bytes" in listener.engine.step().failed["a"]
    listener.engine.add(AddWindow("b", "gone", [listener.spec.start], params))
    assert "No such file" in listener.engine.step().failed["b"]


def test_too_little_memory_is_told_with_the_numbers(model, make):
    executor = make(model, kv_cache_memory_bytes=1000)
    executor.init_device()
    executor.load_model()
    with pytest.raises(InsufficientMemory, match="a window of sound takes 83968 bytes of cache, and 1000 are left"):
        executor.determine_num_available_blocks()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 32}, "maxModelLen is 32; a window of this model has 64 tokens"),
        ({"tensor_parallel_size": 2}, "pipeline_parallel_size is 2; allowed is 1"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2; allowed is 1"),
        ({"enable_lora": True}, "enable_lora"),
        ({"speculation_method": "ngram"}, "speculation_method"),
        ({"kv_store_dir": "/tmp/x"}, "kv_store_dir"),
        ({"compile_sizes": (1,)}, "compile_sizes"),
        ({"load_format": "sharded_state"}, "load_format|sharded"),
        ({"task": "generate"}, "needs attention to the output of an encoder"),
    ],
)
def test_what_is_not_combined_is_refused_by_name(model, make, settings, words):
    with pytest.raises((InvalidSettings, ModelInvalid), match=words):
        start(make(model, **settings))


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("generation_config.json", {"no_timestamps_token_id": None}, "no_timestamps_token_id is None"),
        ("generation_config.json", {"no_timestamps_token_id": 330}, "101 tokens for times are needed"),
        ("generation_config.json", {"task_to_id": {}}, "task_to_id lacks transcribe or translate"),
        ("generation_config.json", {"suppress_tokens": [9999]}, "names the token 9999; the vocabulary has 367"),
        ("preprocessor_config.json", {"n_fft": 512}, "n_fft is 512; allowed is 400"),
        ("preprocessor_config.json", {"dither": 0.1}, "dither or do_normalize is set"),
        ("config.json", {"num_mel_bins": 0}, "num_mel_bins is 0"),
    ],
)
def test_files_that_do_not_say_what_is_needed_are_refused_by_field(tmp_path, file, change, words):
    path = write_whisper(tmp_path / "model")
    said = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(said | change))
    with pytest.raises(ModelInvalid, match=words):
        read_speech(path)


def test_a_model_of_english_only_needs_no_languages(tmp_path):
    assert read_speech(write_whisper(tmp_path / "model", is_multilingual=False)).languages == {}
