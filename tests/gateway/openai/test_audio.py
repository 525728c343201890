"""/v1/audio/transcriptions and translations with OpenAI's client, and forms that are none."""

import io

import aiohttp
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_api.limits import MAX_AUDIO_BYTES
from dormouse_gateway.openai.audio.forms import MAX_FIELD_BYTES, MAX_PARTS, read_form
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.testing.workers import FakeWorker

SOUND = ("speech.wav", b"abc")


@pytest.fixture
async def listener():
    """A worker that hears a word for each byte."""
    made = FakeWorker(name="listener")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client(house, listener, open_client):
    """A client of a gateway that serves the model tiny."""
    await house.add("tiny", [listener])
    return open_client(house)


async def test_text_is_all_that_was_heard(client, listener):
    heard = await client.audio.transcriptions.create(
        model="tiny", file=SOUND, language="de", prompt="x", temperature=0.5
    )
    assert heard.text == "a b c"
    assert (heard.usage.type, heard.usage.seconds) == ("duration", 3)
    (seen,) = (one.request for one in listener.seen if one.method == "Transcribe")
    assert (seen.audio, seen.language, seen.prompt, list(seen.temperatures)) == (b"abc", "de", "x", [0.5])
    assert not seen.translate
    assert seen.HasField("seed")


async def test_a_translation_is_into_english(client, listener):
    with pytest.warns(DeprecationWarning, match="deprecated"):  # of the client, which takes it for an old model's
        heard = await client.audio.translations.create(model="tiny", file=SOUND)
    assert heard.text == "a b c"
    assert listener.seen[-1].request.translate
    assert list(listener.seen[-1].request.temperatures) == []


async def test_verbose_json_tells_segments(client):
    heard = await client.audio.transcriptions.create(
        model="tiny", file=SOUND, response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert (heard.language, heard.duration) == ("en", 3.0)
    assert [(one.id, one.start, one.end, one.text) for one in heard.segments] == [
        (0, 0.0, 1.0, " a"),
        (1, 1.0, 2.0, " b"),
        (2, 2.0, 3.0, " c"),
    ]


SRT = "1\n00:00:00,000 --> 00:00:01,000\na\n\n2\n00:00:01,000 --> 00:00:02,000\nb\n"
VTT = "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\na\n\n00:00:01.000 --> 00:00:02.000\nb\n"


@pytest.mark.parametrize(("form", "wanted"), [("text", "a b\n"), ("srt", SRT), ("vtt", VTT)])
async def test_plain_formats(client, form, wanted):
    assert await client.audio.transcriptions.create(model="tiny", file=b"ab", response_format=form) == wanted


async def test_a_stream_tells_the_text_of_each_window_and_then_all(client):
    stream = await client.audio.transcriptions.create(model="tiny", file=SOUND, stream=True)
    events = [event async for event in stream]
    assert [event.delta for event in events[:-1]] == ["a", " b", " c"]
    assert (events[-1].type, events[-1].text) == ("transcript.text.done", "a b c")
    assert (events[-1].usage.input_tokens, events[-1].usage.output_tokens) == (3, 3)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": "xml"}, "response_format", '"xml"; allowed'),
        ({"temperature": 3}, "temperature", "allowed"),
        ({"temperature": "warm"}, "temperature", "a number"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities[0]", '"word"'),
        ({"include": ["logprobs"]}, "include", "not supported"),
        ({"stream": True, "response_format": "srt"}, "response_format", "allowed where stream is set: json, text"),
        ({"extra_body": {"colour": "red"}}, "colour", "colour"),
        ({"prompt": "x" * 5000}, "prompt", "5000 characters"),
    ],
)
async def test_a_field_that_cannot_be_kept_is_refused_by_name(client, fields, param, words):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.audio.transcriptions.create(model="tiny", file=SOUND, **fields)
    assert caught.value.param == param
    assert words in caught.value.body["message"]


async def test_a_call_goes_on_at_another_worker_where_the_first_one_dies(house, open_client):
    workers = [FakeWorker(name=name) for name in ("one", "two")]
    for each in workers:
        await each.start()
    try:
        await house.add("tiny", workers)
        client = open_client(house)
        heard = await client.audio.transcriptions.create(model="tiny", file=b"ab!cd", response_format="verbose_json")
        assert [(one.id, one.start, one.text) for one in heard.segments] == [
            (place, float(place), f" {letter}") for place, letter in enumerate("ab!cd")
        ]
        seen = [one.request for each in workers for one in each.seen if one.method == "Transcribe"]
        (resumed,) = (request.resume for request in seen if request.HasField("resume"))
        assert (resumed.first_frame, resumed.num_segments, resumed.language) == (200, 2, "en")
    finally:
        for each in workers:
            await each.stop()
    assert house.gateway.migrator.room.used_bytes == 0


async def test_a_stream_that_nobody_can_go_on_with_ends_with_an_error(client):
    stream = await client.audio.transcriptions.create(model="tiny", file=b"a!!!!!", stream=True)
    assert [(await anext(stream)).delta for _ in range(4)] == ["a", " !", " !", " !"]
    with pytest.raises(openai.APIError, match="it moved 3 times already"):
        await anext(stream)
    await stream.close()


@pytest.mark.usefixtures("client")
async def test_what_is_no_form_and_a_file_that_is_too_large_are_refused(house):
    url = f"http://127.0.0.1:{house.ports.openai}/v1/audio/transcriptions"
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json={"model": "tiny"}) as answer:
            assert answer.status == 415
            assert "allowed: multipart/form-data" in (await answer.json())["error"]["message"]
        form = aiohttp.FormData({"model": "tiny"})
        form.add_field("file", io.BytesIO(bytes(MAX_AUDIO_BYTES + 1)), filename="a.wav")
        async with session.post(url, data=form) as answer:
            assert answer.status == 413


PART = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
TYPE = "multipart/form-data; boundary=b"


def form(*parts, end=b"--b--\r\n"):
    return b"".join(PART % part for part in parts) + end


def test_a_form_is_its_fields_and_its_file():
    body = form(
        (b"model", b"", b"tiny"), (b"x[]", b"", b"1"), (b"x[]", b"", b"2"), (b"file", b'; filename="a"', b"\r\n\0")
    )
    read = read_form(body, TYPE)
    assert (read.fields, read.file) == ({"model": "tiny", "x": ["1", "2"]}, b"\r\n\0")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (form((b"model", b"", b"a"), (b"model", b"", b"b")), "model is given twice"),
        (form((b"x", b"", b"a"), (b"x[]", b"", b"b")), r"x\[\] is given twice"),
        (form((b"x[]", b"", b"a"), (b"x", b"", b"b")), "x is given twice"),
        (form((b"model", b'; filename="a"', b"a")), "model is a file"),
        (form((b"file", b"", b"a")), "file is no file"),
        (form(*[(b"file", b'; filename="a"', b"a")] * 2), "file is given twice"),
        (form((b"", b"", b"a")), "has no name"),
        (form((b"model", b"", b"\xff")), "model is no UTF-8"),
        (form((b"model", b"", b"x" * (MAX_FIELD_BYTES + 1))), "model has more than"),
        (form((b"model", b'; x="' + b"y" * 5000 + b'"', b"a")), "Maximum header size exceeded"),
        (form(*[(b"x[]", b"", b"a")] * (MAX_PARTS + 1)), f"more than {MAX_PARTS} parts"),
        (form((b"model", b"", b"tiny"), end=b""), "cut off"),
        (b"", "cut off"),
        (b"nothing of the kind", "is no multipart/form-data"),
    ],
)
def test_a_bad_form_is_refused(body, words):
    with pytest.raises(ApiError, match=words):
        read_form(body, TYPE)


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data", "multipart/mixed; boundary=b"])
def test_a_body_of_another_type_is_no_form(kind):
    with pytest.raises(ApiError, match="content-type is"):
        read_form(form(), kind)


@given(st.binary(max_size=200), st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_damaged_forms_are_read_or_refused(garbage, place):
    whole = form((b"model", b"", b"tiny"), (b"file", b'; filename="a"', b"sound"))
    body = whole[:place] + garbage + whole[place + len(garbage) :]
    try:
        read_form(body, TYPE)
    except ApiError as error:
        assert error.status == 400  # noqa: PT017
