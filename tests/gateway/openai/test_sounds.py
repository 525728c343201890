"""Sounds over HTTP: OpenAI's `input_audio`, and `audio_url` as vLLM takes it. Others are refused by name."""

import base64

import openai
import pytest

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
