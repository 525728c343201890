"""Transcribe as a caller sees it: windows, segments, languages, and every field that cannot be kept. No model."""

import io
import json
import struct

import grpc
import pytest

from dormouse_api.limits import MAX_AUDIO_BYTES
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.task_messages import AddWindow
from dormouse_worker.front.testing import write_model
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode
HEARS = Script(model=ModelInfo(1234, "float32", task="transcribe"))
EOS, START, EN, DE = 256, 257, 258, 259
CONFIG = {
    "architectures": ["WhisperForConditionalGeneration"],
    "vocab_size": 400,
    "num_mel_bins": 80,
    "max_source_positions": 100,
    "max_target_positions": 64,
    "decoder_start_token_id": START,
    "eos_token_id": EOS,
}
GENERATION = {
    "no_timestamps_token_id": 266,
    "prev_sot_token_id": 263,
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"transcribe": 261, "translate": 260},
}


def sound(seconds, rate_hz=16_000):
    """A WAV file of silence."""
    data = bytes(round(seconds * rate_hz) * 2)
    kind = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate_hz, rate_hz * 2, 2, 16)
    file = io.BytesIO()
    file.write(struct.pack("<4sI4s", b"RIFF", 12 + len(kind) + len(data), b"WAVE") + kind)
    file.write(struct.pack("<4sI", b"data", len(data)) + data)
    return file.getvalue()


@pytest.fixture(scope="module")
def listener_path(tmp_path_factory):
    """A directory whose files say that the model reads sound."""
    path = write_model(tmp_path_factory.mktemp("listener"))
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "generation_config.json").write_text(json.dumps(GENERATION))
    return path


@pytest.fixture
async def listener(open_house, listener_path):
    """A front in READY whose engine says " hi" of every window."""
    async with open_house(HEARS, path=listener_path) as house:
        yield house


async def transcribe(house, audio, timeout=60, **fields):
    call = house.inference.Transcribe(pb.TranscribeRequest(audio=audio, **fields), timeout=timeout)
    return [response async for response in call]


def windows(house):
    return [message for message in house.engine.engine.received if isinstance(message, AddWindow)]


async def test_each_window_is_a_message_and_the_language_is_found_once(listener):
    told = await transcribe(listener, sound(5), request_id="mine", priority=3)
    assert [[(one.id, one.start, one.end) for one in response.segments] for response in told] == [
        [(0, 0.0, 2.0)],
        [(1, 2.0, 4.0)],
        [(2, 4.0, 5.0)],
    ]
    assert [response.next_frame for response in told] == [200, 400, 500]
    assert (told[0].language, told[0].duration, told[0].request_id) == ("en", 5.0, "mine")
    assert [response.HasField("usage") for response in told] == [False, False, True]
    assert (told[-1].usage.prompt_tokens, told[-1].usage.completion_tokens) == (9, 12)
    sent = windows(listener)
    assert [message.language_ids for message in sent] == [[EN, DE], [], []]
    assert [message.prompt_token_ids for message in sent][1:] == [[START, EN, 261]] * 2
    assert {message.priority for message in sent} == {3}
    assert len({message.params.seed for message in sent}) == 3


async def test_wishes_reach_the_engine(listener):
    fields = {"temperatures": [0.5], "logprob_threshold": -2.0, "language": "de", "translate": True}
    await transcribe(listener, sound(1), prompt="nut<|endoftext|>", seed=7, **fields)
    (sent,) = windows(listener)
    assert sent.prompt_token_ids[0] == 263
    assert sent.prompt_token_ids[sent.start_place :] == [START, DE, 260]
    assert EOS not in sent.prompt_token_ids
    params = sent.params
    assert (params.temperatures, params.logprob_threshold, params.no_speech_threshold) == (
        (0.5,),
        -2.0,
        pytest.approx(0.6),
    )
    assert (params.seed, params.max_tokens) == (7, 64 - len(sent.prompt_token_ids))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"audio": b""}, "audio is empty; allowed: a file of the kind wav, flac, ogg, mp3 or webm"),
        ({"audio": b"none"}, "audio is not usable: it cannot be decoded"),
        ({"audio": b"x" * (MAX_AUDIO_BYTES + 1)}, f"message is {MAX_AUDIO_BYTES + 1} bytes of sound"),
        ({"language": "xx"}, "language is 'xx'; allowed: de, en"),
        ({"prompt": "x" * 5000}, "prompt is 5000 characters; allowed: at most 4096"),
        ({"temperatures": [0.1] * 9}, "temperatures is 9 numbers; allowed: at most 8"),
        ({"temperatures": [-1.0]}, "temperatures[0] is -1; allowed: 0 to 2"),
        ({"temperatures": [float("nan")]}, "temperatures[0] is nan"),
        ({"no_speech_threshold": float("nan")}, "no_speech_threshold is nan"),
        ({"priority": 101}, "priority is 101"),
        ({"request_id": "\n"}, "request_id is"),
        ({"resume": pb.TranscribeResume(language="en")}, "resume is set; allowed: only by the gateway"),
    ],
)
async def test_a_field_that_cannot_be_kept_is_refused_by_name(listener, fields, words):
    with pytest.raises(grpc.RpcError) as caught:
        await transcribe(listener, **{"audio": sound(1), **fields})
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert words in caught.value.details()
    assert windows(listener) == []


async def test_a_caller_that_leaves_leaves_nothing_behind(listener):
    call = listener.inference.Transcribe(pb.TranscribeRequest(audio=sound(60)), timeout=60)
    await call.read()
    call.cancel()
    requests = listener.front.worker.requests
    await listener.front.worker.load_changes.until(lambda: len(requests) == 0)
    desk = listener.front.worker.served.edition.model.desk_for_sound
    assert repr(desk).startswith("SpeechDesk(0 bytes wait, 0 of features")
