"""How a model hears, from its files alone: what is made in another way, or is no number, is named."""

import json

import pytest

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.hearing_files import HearingSpec, read_hearing

CONFIG = {"model_type": "qwen2_audio", "audio_config": {}}
EXTRACTOR = {"feature_size": 128, "chunk_length": 30, "hop_length": 160, "n_fft": 400, "sampling_rate": 16_000}


def test_what_files_do_not_say_is_as_transformers_has_it(tmp_path):
    assert read_hearing(tmp_path, CONFIG) == HearingSpec(151_646, "<|AUDIO|>", 128, 3000)
    assert read_hearing(tmp_path, {**CONFIG, "model_type": "qwen2"}) is None
    assert read_hearing(tmp_path, {"model_type": "qwen2_audio"}) is None


def test_files_say_tokens_and_sizes(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**EXTRACTOR, "feature_size": 80, "chunk_length": 1}))
    (tmp_path / "processor_config.json").write_text('{"audio_token": "<sound>"}')
    audio = {"num_mel_bins": 80, "max_source_positions": 50}
    spec = read_hearing(tmp_path, {**CONFIG, "audio_config": audio, "audio_token_index": 7})
    assert spec == HearingSpec(7, "<sound>", 80, 100)
    assert spec.max_seconds == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"chunk_length": 10}, "preprocessor_config.json: chunk_length is 10; allowed is 30"),
        ({"feature_size": 80}, "feature_size is 80; allowed is 128"),
        ({"hop_length": 80}, "hop_length is 80; allowed is 160"),
        ({"padding_side": "left"}, "padding_side is left; allowed is right"),
        ({"dither": 0.1}, "dither or do_normalize is set"),
    ],
)
def test_features_of_another_kind_are_refused(tmp_path, said, words):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**EXTRACTOR, **said}))
    with pytest.raises(ModelInvalid, match=words):
        read_hearing(tmp_path, CONFIG)


def test_what_newer_files_say_comes_first(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(EXTRACTOR))
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": {**EXTRACTOR, "n_fft": 1}}))
    with pytest.raises(ModelInvalid, match=r"processor_config.json: n_fft is 1; allowed is 400"):
        read_hearing(tmp_path, CONFIG)


@pytest.mark.parametrize("own", [{"audio_token_index": "x"}, {"audio_config": {"num_mel_bins": 0}}])
def test_what_is_no_number_is_named(tmp_path, own):
    with pytest.raises(ModelInvalid, match="a number above 0 is needed"):
        read_hearing(tmp_path, {**CONFIG, **own})
