"""Tokenizers of older formats, converted once."""

from __future__ import annotations

import json
import os

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import MadeTokenizer
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.model.tokenizer import convert

GPT2 = {"model_type": "gpt2", "vocab_size": 258, "bos_token_id": 257, "eos_token_id": 257}


@pytest.fixture
def old(tmp_path):
    """A directory as GPT-2 was published: vocab.json and merges.txt, no tokenizer.json."""
    directory = tmp_path / "old"
    directory.mkdir()
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    (directory / "vocab.json").write_text(json.dumps({**vocab, "he": 256, "<|endoftext|>": 257}))
    (directory / "merges.txt").write_text("#version: 0.2\nh e\n")
    (directory / "config.json").write_text(json.dumps(GPT2))
    return directory


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_vocabulary_and_merges_become_a_tokenizer_json_that_reads_them(old, cache):
    made = convert(old, cache)
    tokenizer = Tokenizer.from_file(str(made))
    assert tokenizer.encode("he<|endoftext|>").ids == [256, 257]
    assert not (old / "tokenizer.json").exists(), "the model's directory may be read-only"


def test_the_second_time_nothing_is_made_and_another_vocabulary_is_another_file(old, cache):
    made = convert(old, cache)
    made.write_text("kept")
    assert convert(old, cache).read_text() == "kept"
    (old / "merges.txt").write_text("#version: 0.2\n")
    assert convert(old, cache) != made


def test_a_model_without_any_tokenizer_gets_none_and_not_an_empty_one(old, cache):
    (old / "vocab.json").unlink()
    assert convert(old, cache) is None


def test_what_can_not_be_converted_names_the_directory_and_leaves_nothing(old, cache):
    (old / "vocab.json").write_text("{")
    with pytest.raises(ModelInvalid, match=str(old)):
        convert(old, cache)
    assert list(cache.rglob("*.json")) == []


def test_a_cache_that_others_can_write_to_is_refused(old, cache):
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(PermissionError, match="--tokenizer-cache"):
        convert(old, cache)


def executor(model, cache):
    return SingleProcessExecutor(EngineSettings(model=str(model), tokenizer_cache=str(cache)), os.environ, Host())


def test_the_executor_tells_the_path_or_nothing(old, cache, caplog):
    assert executor(old, cache).convert_tokenizer().path == str(convert(old, cache))
    (old / "vocab.json").write_text("{")
    made = executor(old, cache).convert_tokenizer()
    assert (made.path, str(old) in made.problem) == ("", True)
    assert "no text without a tokenizer" in caplog.text
    (old / "tokenizer.json").write_text("the front reads this one itself")
    assert executor(old, cache).convert_tokenizer() == MadeTokenizer()


def test_a_cache_that_can_not_be_written_is_told_as_the_cause(old, cache):
    cache.write_text("a file")
    made = executor(old, cache).convert_tokenizer()
    assert made.path == ""
    assert [word for word in (str(cache), "File exists", "--tokenizer-cache") if word not in made.problem] == []
