"""Videos over HTTP as vLLM takes them: frames in a data URL. Other videos are refused by name."""

import base64

import openai
import pytest

from dormouse_api.limits import MAX_FRAMES
from dormouse_api.v1 import inference_pb2 as pb

FRAMES = [b"\xff\xd8one", b"\xff\xd8another", b"\xff\xd8last"]
URL = "data:video/jpeg;base64," + ",".join(base64.b64encode(frame).decode() for frame in FRAMES)


def chat(url, **more):
    part = {"type": "video_url", "video_url": {"url": url, **more}}
    return {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}]}


async def test_frames_reach_the_worker_in_their_order(client, worker):
    worker.video_tokens = 7
    told = await client.chat.completions.create(**chat(URL))
    await client.chat.completions.create(**chat(URL, fps=2.5))
    videos = [asked.request.chat.messages[0].parts[1].video for asked in worker.seen]
    assert videos == [pb.Video(frames=FRAMES), pb.Video(frames=FRAMES, fps=2.5)]
    assert told.usage.prompt_tokens_details.video_tokens == 7


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://secret.example/a.mp4?token=hush", "video_url.url is no data URL of frames; allowed: data:video/jpeg"),
        ("data:video/mp4;base64,aHVzaA==", "is a video of the kind video/mp4; allowed: .*decode the video"),
        ("data:video/jpeg;base64,", "is an empty image"),
        ("data:video/jpeg;base64,YQ==,***", "video_url.url is no base64"),
        ("data:video/jpeg;base64," + ",".join(["YQ=="] * (MAX_FRAMES + 1)), f"{MAX_FRAMES + 1} frames; allowed"),
    ],
)
async def test_what_is_no_video_is_named_and_not_shown(client, worker, url, words):
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        await client.chat.completions.create(**chat(url))
    assert not any(shown in str(caught.value) for shown in ("hush", "aHVzaA", "***"))
    assert worker.seen == []


async def test_a_speed_is_a_number_of_frames(client, worker):
    with pytest.raises(openai.BadRequestError, match="fps"):
        await client.chat.completions.create(**chat(URL, fps=0))
    assert worker.seen == []
