"""Sounds over HTTP: OpenAI's `input_audio`, and `audio_url` as vLLM takes it. Others are refused by name."""

import base64

import anthropic
import openai
import pytest
from openai.types.responses import ResponseInputAudioParam

from dormouse_api.limits import MAX_AUDIO_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES

SOUND = b"RIFFsound"
TEXT = base64.b64encode(SOUND).decode()
URL = f"data:audio/wav;base64,{TEXT}"


def chat(part):
    return {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}]}


def as_input(data, kind="wav"):
    return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}


def as_url(url):
    return {"type": "audio_url", "audio_url": {"url": url}}


async def test_both_forms_reach_the_worker_and_are_counted(client, worker):
    worker.audio_tokens = 7
    for part in (as_input(TEXT), as_input(TEXT, "flac"), as_url(URL)):
        told = await client.chat.completions.create(**chat(part))
        assert told.usage.prompt_tokens_details.audio_tokens == 7
    assert [asked.request.chat.messages[0].parts[1].audio for asked in worker.seen] == [SOUND] * 3


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (as_input("***"), "input_audio.data is no base64"),
        (as_input("A" * (MAX_AUDIO_BYTES // 3 * 4 + 8)), f"allowed: at most {MAX_AUDIO_BYTES} bytes"),
        (as_input(TEXT, "aiff"), 'format is "aiff"; allowed: "wav", "mp3", "flac"'),
        (as_url("https://secret.example/a.wav?token=hush"), "audio_url.url is no data URL of a sound; allowed: data:"),
        (as_url(f"data:audio/wav,{TEXT}"), "is no data URL of a sound"),
        (as_url("data:audio/wav;base64,"), "an empty sound"),
    ],
)
async def test_what_is_no_sound_is_named_and_not_shown(client, worker, part, words):
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        await client.chat.completions.create(**chat(part))
    assert not any(shown in str(caught.value) for shown in ("hush", "***", TEXT))
    assert worker.seen == []


async def test_there_are_only_so_many_and_they_are_called_sounds(client, worker):
    """Limits that images, videos and sounds share name what came."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}}
    large = as_input("A" * (MAX_IMAGES_BYTES // 6 * 4))
    for parts, words in (
        ([as_input(TEXT)] * (MAX_IMAGES + 1), f"the last of {MAX_IMAGES + 1} sounds; allowed: at most {MAX_IMAGES}"),
        ([image, *[as_url(URL)] * MAX_IMAGES], f"the last of {MAX_IMAGES + 1} images and sounds"),
        ([large, large, as_input(TEXT)], "bytes of sounds; allowed: .* bytes together"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}])
    assert worker.seen == []


async def test_a_response_takes_sounds_as_openais_client_has_them(client, worker):
    """Typed by the client's own class; their tokens are told as in a chat."""
    worker.audio_tokens = 7
    sound: ResponseInputAudioParam = {"type": "input_audio", "input_audio": {"data": TEXT, "format": "wav"}}
    said = [{"type": "input_text", "text": "What?"}, sound]
    told = await client.responses.create(model="tiny", input=[{"role": "user", "content": said}])
    (turn,) = worker.seen[-1].request.chat.messages
    assert [part.text or part.audio for part in turn.parts] == ["What?", SOUND]
    assert told.usage.input_tokens_details.audio_tokens == 7


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([{"role": "user", "content": [as_input("***")]}], r"input\[0\].content\[0\].input_audio.data is no base64"),
        ([{"role": "user", "content": [as_url(URL)]}], r"type is \"audio_url\"; allowed: .*\"input_audio\""),
        (
            [{"type": "function_call_output", "call_id": "1", "output": [as_input(TEXT)]}],
            r"output\[0\].type is \"input_audio\"; allowed: ",
        ),
    ],
    ids=["no base64", "vLLM's form", "of a function"],
)
async def test_sounds_that_a_response_does_not_take_are_named(client, worker, body, words):
    """OpenAI's API has one form, in messages alone."""
    with pytest.raises(openai.BadRequestError, match=words):
        await client.responses.create(model="tiny", input=body)
    assert worker.seen == []


async def test_anthropics_api_has_no_sounds(claude, worker):
    """They are refused by name, whatever they call themselves."""
    for sound in (
        as_input(TEXT),
        {"type": "audio", "source": {"type": "base64", "media_type": "audio/wav", "data": TEXT}},
    ):
        kind = sound["type"]
        with pytest.raises(anthropic.BadRequestError, match=rf'type is \\?"{kind}\\?"; allowed: .*image'):
            await claude.messages.create(model="tiny", max_tokens=9, messages=[{"role": "user", "content": [sound]}])
    assert worker.seen == []
