"""A real worker that reads sound, behind its own port and behind the door of `dormouse serve`."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import openai
import pytest
import soundfile

from dormouse_api.limits import channel_options
from dormouse_api.names import Role
from dormouse_api.testing_tickets import POD_UID, proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing_speech import RATE_HZ, heard, write_whisper
from tests.integration.test_embeddings import open_door
from tests.integration.test_sleep import sleep, wake

WAIT_S = 110
READY, ASLEEP, STANDBY = (getattr(control, f"WORKER_STATE_{state}") for state in ("READY", "ASLEEP", "STANDBY"))


def noise(seconds, seed=0):
    return (np.random.default_rng(seed).standard_normal(round(RATE_HZ * seconds)) * 0.1).astype(np.float32)


def as_file(samples, rate_hz=RATE_HZ, kind="WAV", subtype="FLOAT"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=kind, subtype=subtype)
    return file.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def listener(start_worker, model):
    """A worker with a Whisper of random weights."""
    worker = start_worker(
        model,
        "--dtype",
        "float32",
        "--max-model-len",
        "64",
        "--max-num-seqs",
        "4",
        "--threads",
        "1",
        "--max-audio-seconds",
        "20",
    )
    assert worker.report().num_gpu_blocks == 4
    request = control.InitializeCacheRequest(epoch=1, num_gpu_blocks=4)
    assert worker.operate("InitializeCache", request).state == READY
    return worker


@pytest.fixture(scope="module")
def stub(listener):
    with grpc.insecure_channel(f"127.0.0.1:{listener.port}", options=channel_options()) as channel:
        yield rpc.InferenceStub(channel)


def transcribed(stub, audio, **fields):
    return list(stub.Transcribe(pb.TranscribeRequest(audio=audio, **fields), timeout=WAIT_S))


GREEDY = {"temperatures": [0.0], "language": "en"}


def test_tokens_and_times_are_those_of_transformers(stub, model):
    seconds = 3
    sound = noise(seconds)
    told = transcribed(stub, as_file(sound), no_speech_threshold=2.0, **GREEDY)
    segments = [segment for response in told for segment in response.segments]
    wanted = heard(model, sound, language="en", task="transcribe", temperature=0.0)
    assert [list(segment.token_ids) for segment in segments] == [one["tokens"].tolist() for one in wanted]
    assert [segment.end for segment in segments] == pytest.approx([min(float(one["end"]), seconds) for one in wanted])
    assert [segment.id for segment in segments] == list(range(len(segments)))
    assert (told[0].language, told[0].duration, told[-1].next_frame) == ("en", seconds, seconds * 100)
    assert told[-1].usage.completion_tokens >= sum(len(segment.token_ids) for segment in segments)


def test_calls_share_passes_and_change_nothing_for_each_other(stub):
    sounds = [as_file(noise(1, seed)) for seed in range(4)]
    alone = [transcribed(stub, sound, **GREEDY) for sound in sounds]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda sound: transcribed(stub, sound, **GREEDY), sounds))
    assert [_tokens(one) for one in together] == [_tokens(one) for one in alone]


def test_a_language_is_found_where_none_is_named(stub, model):
    sound = noise(2)
    told = transcribed(stub, as_file(sound), temperatures=[0.0])
    assert told[0].language in {"en", "de"}
    wanted = transcribed(stub, as_file(sound), temperatures=[0.0], language=told[0].language)
    assert _tokens(told) == _tokens(wanted)
    assert model.is_dir()


def test_what_was_told_already_is_not_told_again_where_a_gateway_goes_on(stub):
    sound = as_file(noise(3))
    whole = transcribed(stub, sound, **GREEDY)
    resume = pb.TranscribeResume(first_frame=whole[0].next_frame, num_segments=len(whole[0].segments), language="en")
    request = pb.TranscribeRequest(audio=sound, resume=resume, **GREEDY)
    rest = list(stub.Transcribe(request, timeout=WAIT_S, metadata=proof(Role.GATEWAY, POD_UID)))
    assert [list(one.segments) for one in rest] == [list(one.segments) for one in whole[1:]]
    with pytest.raises(grpc.RpcError, match="resume is set; allowed: only by the gateway"):
        list(stub.Transcribe(request, timeout=WAIT_S))


@pytest.mark.parametrize(("kind", "subtype"), [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", None)])
def test_every_kind_of_file_and_rate_is_heard(stub, kind, subtype):
    stereo = np.stack([noise(1), noise(1)], axis=1)
    (told, *_) = transcribed(stub, as_file(stereo, 44_100, kind, subtype), **GREEDY)
    assert told.duration == pytest.approx(RATE_HZ / 44_100, abs=0.1)  # mp3 comes in whole frames


BAD = {
    "no sound": (b"RIFF of another kind", "cannot be decoded"),
    "another container": (b"\x00\x00\x00\x20ftypM4A " + bytes(100), "cannot be decoded"),
    "a rate of 1": (as_file(np.zeros(4), 1), "it has 1 samples a second; allowed: 4000 to 192000"),
    "nothing in it": (as_file(np.zeros(0)), "it has no samples; allowed: at least 1"),
    "too long": (as_file(np.zeros(RATE_HZ * 21)), "it lasts 21.0 seconds; allowed: 20 seconds"),
    "no numbers": (as_file(np.full(100, np.nan)), "samples that are not finite"),
    "many channels": (as_file(np.zeros((100, 9))), "it has 9 channels; allowed: 1 to 8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sound_is_refused_by_name_and_disturbs_nobody(stub, name):
    audio, words = BAD[name]
    with pytest.raises(grpc.RpcError) as caught:
        transcribed(stub, audio, **GREEDY)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in caught.value.details()
    assert caught.value.details().startswith("audio is not usable: ")


def test_calls_of_other_tasks_name_this_one(stub):
    with pytest.raises(grpc.RpcError, match="the model's task is transcribe, which Generate does not do"):
        list(stub.Generate(pb.GenerateRequest(text="a"), timeout=WAIT_S))


@pytest.mark.parametrize(("level", "state"), [(1, ASLEEP), (3, STANDBY)])
def test_the_same_is_heard_after_any_sleep(listener, stub, level, state):
    sound = as_file(noise(2))
    before = _tokens(transcribed(stub, sound, **GREEDY))
    assert sleep(listener, level).state == state
    woken = wake(listener)
    if level == 3:
        assert listener.report().num_gpu_blocks == 4
        woken = listener.operate("InitializeCache", control.InitializeCacheRequest(epoch=1, num_gpu_blocks=4))
    assert woken.state == READY
    assert _tokens(transcribed(stub, sound, **GREEDY)) == before


@pytest.fixture(scope="module")
def client(listener):
    """OpenAI's client of the door."""
    with (
        open_door(listener) as address,
        openai.OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0, timeout=WAIT_S) as made,
    ):
        yield made


def test_openais_client_gets_text_segments_and_events(client, stub):
    sound = as_file(noise(1))
    told = [
        one
        for response in transcribed(stub, sound, language="de", temperatures=[0.5], seed=3)
        for one in response.segments
    ]
    how = {
        "model": "tiny",
        "file": ("speech.wav", sound),
        "language": "de",
        "temperature": 0.5,
        "extra_body": {"seed": 3},
    }
    verbose = client.audio.transcriptions.create(response_format="verbose_json", **how)
    assert [segment.tokens for segment in verbose.segments] == [list(segment.token_ids) for segment in told]
    assert (verbose.language, verbose.duration) == ("de", 1.0)
    text = client.audio.transcriptions.create(**how).text
    assert text == "".join(segment.text for segment in told).strip()
    events = list(client.audio.transcriptions.create(stream=True, **how))
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text.rstrip() == text
    srt = client.audio.transcriptions.create(response_format="srt", **how)
    assert srt.count(" --> ") == len(told)


def test_a_long_sound_is_beyond_a_message_and_heard_all_the_same(client):
    large = as_file(np.stack([noise(6)] * 2, axis=1), 3 * RATE_HZ, subtype="DOUBLE")
    assert len(large) > 1 << 20
    with pytest.warns(DeprecationWarning, match="deprecated"):  # of the client, which takes it for an old model's
        answer = client.audio.translations.create(model="tiny", file=("speech.wav", large), temperature=0.5)
    assert isinstance(answer.text, str)


def _tokens(responses):
    return [list(segment.token_ids) for response in responses for segment in response.segments]
