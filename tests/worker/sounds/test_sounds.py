"""Sound from files: rates and kinds, features like transformers', and bombs that are found before they go off."""

import json
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import WhisperFeatureExtractor

from dormouse_worker.sounds.decoding import BadSound, SoundLimits
from dormouse_worker.sounds.program import Processing, answer
from dormouse_worker.sounds.resampling import RATE_HZ, Resampler

LIMITS = SoundLimits(max_seconds=100)


def noise(num_samples):
    return (np.random.default_rng(0).standard_normal(num_samples) * 0.1).astype(np.float32)


@pytest.fixture
def process(tmp_path):
    """Return a function that has bytes or samples processed, and returns what is told and the features."""

    def run(sound, rate_hz=RATE_HZ, num_mels=80, limits=LIMITS, **how):
        source, target = tmp_path / "sound", tmp_path / "features"
        if isinstance(sound, bytes):
            source.write_bytes(sound)
        else:
            soundfile.write(source, sound, rate_hz, **{"format": "WAV", "subtype": "FLOAT", **how})
        told = json.loads(Processing(num_mels, 3000, limits).run(source, target))
        assert not list(tmp_path.glob("*.samples"))
        return told, np.fromfile(target, np.float32).reshape(-1, num_mels)

    return run


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("seconds", [0.01, 3, 30, 31.37, 65])
def test_features_are_those_of_transformers(process, seconds, num_mels):
    sound = noise(round(RATE_HZ * seconds))
    told, features = process(sound, num_mels=num_mels)
    how = {"truncation": False, "padding": "longest"} if seconds > 30 else {}
    extractor = WhisperFeatureExtractor(feature_size=num_mels)
    (wanted,) = extractor(sound, sampling_rate=RATE_HZ, return_tensors="np", **how)["input_features"]
    np.testing.assert_allclose(features.T, wanted, atol=2e-5)
    assert (told["num_frames"], told["num_content_frames"]) == (len(features), max(1, int(100 * seconds)))
    assert told["seconds"] == pytest.approx(seconds)


def test_silence_is_features_too(process):
    told, features = process(np.zeros(RATE_HZ))
    assert told["num_frames"] == 3000
    assert np.isfinite(features).all()


@pytest.mark.parametrize("rate_hz", [4000, 8000, 11_025, 22_050, 44_100, 44_101, 48_000, 192_000])
def test_tones_keep_their_shape_at_any_rate(rate_hz):
    seconds = np.arange(round(2.3 * rate_hz)) / rate_hz
    sound = (np.sin(2 * np.pi * 440 * seconds) + 0.5 * np.sin(2 * np.pi * 1500 * seconds)).astype(np.float32)
    pieces = [sound[start : start + rate_hz] for start in range(0, len(sound), rate_hz)]
    made = np.concatenate(list(Resampler(rate_hz).run(pieces)))
    at = np.arange(len(made)) / RATE_HZ
    wanted = np.sin(2 * np.pi * 440 * at) + 0.5 * np.sin(2 * np.pi * 1500 * at)
    assert len(made) == pytest.approx(2.3 * RATE_HZ, abs=1)
    np.testing.assert_allclose(made[600:-600], wanted[600:-600], atol=1e-3)


def test_what_lies_above_the_lower_rate_is_gone():
    seconds = np.arange(48_000) / 48_000
    (made,) = Resampler(48_000).run([np.sin(2 * np.pi * 11_000 * seconds).astype(np.float32)])
    assert np.abs(made[600:-600]).max() < 1e-3


def test_channels_are_mixed(process):
    left, right = noise(RATE_HZ), noise(RATE_HZ)[::-1]
    _, mixed = process(np.stack([left, right], axis=1))
    _, mean = process((left + right) / 2)
    np.testing.assert_allclose(mixed, mean, atol=1e-4)


def header(rate_hz=RATE_HZ, channels=1, data_bytes=0, real=b""):
    """A WAV file whose header says what it likes."""
    kind = struct.pack(
        "<4sIHHIIHH", b"fmt ", 16, 1, channels, rate_hz, (rate_hz * channels * 2) % 2**32, channels * 2, 16
    )
    data = struct.pack("<4sI", b"data", data_bytes) + real
    return struct.pack("<4sI4s", b"RIFF", 4 + len(kind) + len(data), b"WAVE") + kind + data


@pytest.mark.parametrize(
    ("sound", "words"),
    [
        (header(rate_hz=1, data_bytes=200, real=bytes(200)), "it has 1 samples a second; allowed: 4000 to 192000"),
        (header(rate_hz=10**9, data_bytes=200, real=bytes(200)), "it has 1000000000 samples a second"),
        (header(channels=200, data_bytes=800, real=bytes(800)), "it has 200 channels; allowed: 1 to 8"),
        (header(), "it has no samples"),
        (b"", "cannot be decoded"),
        (bytes(1000), "cannot be decoded"),
        (b"\x1aE\xdf\xa3" + bytes(500), "cannot be decoded"),  # what begins a webm
    ],
)
def test_a_header_is_refused_before_anything_is_decoded(process, sound, words):
    with pytest.raises(BadSound, match=words):
        process(sound)


def test_a_length_that_a_header_only_declares_is_not_believed(process):
    told, _ = process(header(data_bytes=2**31, real=bytes(2 * RATE_HZ)))
    assert told["seconds"] == 1


def test_an_hour_of_silence_in_a_small_file_is_refused(process, tmp_path):
    bomb = tmp_path / "bomb"
    with soundfile.SoundFile(bomb, "w", 8000, 1, format="FLAC", subtype="PCM_16") as file:
        for _ in range(60):
            file.write(np.zeros(8000 * 60, np.int16))
    assert bomb.stat().st_size < 1 << 18
    with pytest.raises(BadSound, match=r"it lasts 3600.0 seconds; allowed: 100 seconds"):
        process(bomb.read_bytes())


def test_a_sound_that_is_longer_than_its_header_says_is_stopped_at_the_limit(process):
    sound = noise(RATE_HZ * 3)
    with pytest.raises(BadSound, match="allowed: 2 seconds"):
        process(sound, limits=SoundLimits(2))


def test_a_file_of_another_kind_that_the_library_knows_is_refused(process):
    with pytest.raises(BadSound, match="it is of the kind AIFF; allowed are wav, flac, ogg, mp3 and webm"):
        process(noise(100), format="AIFF", subtype="PCM_16")


def test_an_order_is_answered_also_where_it_is_refused(tmp_path):
    source = tmp_path / "sound"
    source.write_bytes(b"none")
    order = {"sources": [str(source)], "target": str(tmp_path / "features")}
    assert "cannot be decoded" in answer(Processing(80, 3000, LIMITS), order)["refused"]


@given(st.binary(max_size=300), st.integers(0, 400), st.sampled_from(["WAV", "FLAC", "OGG"]))
@settings(max_examples=60, deadline=None)
def test_damaged_files_are_heard_or_refused(tmp_path_factory, garbage, place, kind):
    folder = tmp_path_factory.mktemp("fuzz")
    source = folder / "sound"
    soundfile.write(source, noise(2000), 8000, format=kind)
    whole = source.read_bytes()
    source.write_bytes(whole[:place] + garbage + whole[place + len(garbage) :])
    told = answer(Processing(80, 3000, LIMITS), {"sources": [str(source)], "target": str(folder / "features")})
    assert len(told.get("refused", "")) < 200
    assert "refused" in told or 0 < json.loads(told["text"])["seconds"] <= 100
