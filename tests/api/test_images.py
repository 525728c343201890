"""Images in messages: their limits, and what of a message's bytes they are."""

import base64

import pytest

from dormouse_api import image_wire
from dormouse_api.client.settings import chat_request
from dormouse_api.image_wire import excess
from dormouse_api.images import (
    BadImage,
    check_chat_images,
    check_images,
    forget_images,
    from_base64,
    from_data_url,
    images_of,
    num_image_bytes,
    sounds_of,
)
from dormouse_api.limits import (
    MAX_AUDIO_BYTES,
    MAX_FRAMES,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    MAX_MESSAGE_BYTES,
)
from dormouse_api.v1 import inference_pb2 as pb

PNG = b"\x89PNG not really"
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def request(*images, kind=pb.GenerateRequest, text="hi"):
    parts = [pb.ContentPart(text=text), *(pb.ContentPart(image=image) for image in images)]
    return kind(model="m", chat=pb.Chat(messages=[pb.ChatMessage(role="user", parts=parts)]))


def test_a_data_url_is_the_file_that_it_holds():
    assert from_data_url(URL) == from_data_url(URL.replace("png;", "png;name=a;")) == PNG


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://example.org/a.png",
        "data:image/png,abc",
        "data:text/html;base64,YQ==",
        "data:image/png;base64",
        "DATA:image/png;base64,YQ==",
        "data:" + "a" * 300 + "image/png;base64,YQ==",
        "data:image/png;base64,Y Q==",
        "data:image/png;base64,YQ",
        "data:image/png;base64,\N{SNOWMAN}",
    ],
)
def test_what_is_no_image_is_refused_and_not_shown(url):
    with pytest.raises(BadImage, match="allowed: ") as caught:
        from_data_url(url)
    assert "example" not in str(caught.value)


def test_a_large_image_is_refused_before_it_is_decoded():
    with pytest.raises(BadImage, match=f"at most {MAX_IMAGE_BYTES} bytes"):
        from_base64("!" * (MAX_IMAGE_BYTES * 4 // 3 + 8))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([1] * (MAX_IMAGES + 1), f"17 images; allowed: at most {MAX_IMAGES}"),
        ([0], "an empty image"),
        ([MAX_IMAGE_BYTES + 1], f"at most {MAX_IMAGE_BYTES} bytes"),
        ([MAX_IMAGE_BYTES, MAX_IMAGE_BYTES], f"at most {MAX_IMAGES_BYTES} bytes"),
    ],
)
def test_limits_of_images_are_named(sizes, words):
    with pytest.raises(BadImage, match=words):
        check_images(bytes(size) for size in sizes)


def test_what_keeps_the_limits_passes():
    check_images([bytes(MAX_IMAGE_BYTES), bytes(MAX_IMAGES_BYTES - MAX_IMAGE_BYTES)])


@pytest.mark.parametrize("kind", [pb.GenerateRequest, pb.TokenizeRequest])
def test_images_do_not_count_as_the_message(kind):
    raw = request(bytes(MAX_IMAGE_BYTES), PNG, kind=kind).SerializeToString()
    assert excess(kind, raw) == ""
    assert "beside its images" in excess(
        kind, request(PNG, text="a" * MAX_MESSAGE_BYTES, kind=kind).SerializeToString()
    )
    assert "bytes of images" in excess(kind, request(bytes(MAX_IMAGES_BYTES + 1), kind=kind).SerializeToString())


def film(*frames, fps=0.0, kind=pb.GenerateRequest):
    part = pb.ContentPart(video=pb.Video(frames=frames, fps=fps))
    return kind(model="m", chat=pb.Chat(messages=[pb.ChatMessage(role="user", parts=[part])]))


@pytest.mark.parametrize("kind", [pb.GenerateRequest, pb.TokenizeRequest])
def test_frames_do_not_count_as_the_message(kind):
    raw = film(bytes(MAX_IMAGE_BYTES), PNG, kind=kind).SerializeToString()
    assert excess(kind, raw) == ""
    assert "bytes of images" in excess(kind, film(bytes(MAX_IMAGES_BYTES + 1), kind=kind).SerializeToString())


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (film(), "a video without frames"),
        (film(b""), "an empty image"),
        (film(PNG, fps=float("nan")), "a video of nan frames a second; allowed: 0.01 to 240"),
        (film(*[PNG] * (MAX_FRAMES + 1)), f"{MAX_FRAMES + 1} frames; allowed: at most {MAX_FRAMES}"),
        (film(bytes(MAX_IMAGE_BYTES), bytes(MAX_IMAGE_BYTES)), f"^videos of .* at most {MAX_IMAGES_BYTES} bytes"),
    ],
)
def test_limits_of_videos_are_named(chat, words):
    with pytest.raises(BadImage, match=words):
        check_chat_images(chat.chat)


def test_images_and_videos_count_together():
    both = request(*[PNG] * MAX_IMAGES)
    check_chat_images(both.chat)
    both.chat.messages.extend(film(PNG, fps=1.0).chat.messages)
    with pytest.raises(BadImage, match=f"^{MAX_IMAGES + 1} images and videos;"):
        check_chat_images(both.chat)
    assert num_image_bytes(both.chat) == (MAX_IMAGES + 1) * len(PNG)
    forget_images(both.chat)
    assert num_image_bytes(both.chat) == 0
    assert both.chat.messages[1].parts[0].WhichOneof("part") == "video", "templates are still told of it"


def heard(*sounds, image=None):
    parts = [pb.ContentPart(audio=sound) for sound in sounds] + [pb.ContentPart(image=image)] * bool(image)
    return pb.GenerateRequest(model="m", chat=pb.Chat(messages=[pb.ChatMessage(role="user", parts=parts)]))


def test_sounds_do_not_count_as_the_message_and_are_forgotten():
    raw = heard(bytes(MAX_AUDIO_BYTES), b"x")
    assert excess(pb.GenerateRequest, raw.SerializeToString()) == ""
    check_chat_images(raw.chat)
    forget_images(raw.chat)
    assert num_image_bytes(raw.chat) == 0
    assert raw.chat.messages[0].parts[0].WhichOneof("part") == "audio", "templates are still told of it"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (heard(b""), "an empty sound"),
        (heard(bytes(MAX_AUDIO_BYTES + 1)), f"at most {MAX_AUDIO_BYTES} bytes"),
        (heard(bytes(MAX_AUDIO_BYTES), image=bytes(MAX_IMAGES_BYTES - MAX_AUDIO_BYTES + 1)), "images and sounds of"),
        (heard(*[b"x"] * MAX_IMAGES, image=PNG), f"^{MAX_IMAGES + 1} images and sounds; allowed: at most"),
        (heard(bytes(MAX_AUDIO_BYTES), bytes(MAX_IMAGES_BYTES - MAX_AUDIO_BYTES + 1)), "^sounds of"),
        (heard(*[b"x"] * (MAX_IMAGES + 1)), f"^{MAX_IMAGES + 1} sounds; allowed: at most"),
    ],
    ids=["empty", "large", "together", "many", "sounds together", "many sounds"],
)
def test_limits_of_sounds_are_named(asked, words):
    with pytest.raises(BadImage, match=words):
        check_chat_images(asked.chat)


def test_other_messages_have_no_room_for_images():
    chat = request(bytes(MAX_MESSAGE_BYTES)).chat
    assert "1048576" in excess(pb.DecideRequest, pb.DecideRequest(chat=chat).SerializeToString())


@pytest.mark.parametrize(
    "raw",
    [
        b"\x08\x01" * MAX_MESSAGE_BYTES,
        b"\x2a\xff\xff\xff\xff\x0f" + bytes(MAX_MESSAGE_BYTES),
        b"\xff" * (MAX_MESSAGE_BYTES + 1),
        b"\x0b" * (MAX_MESSAGE_BYTES + 1),
        b"\x29" + b"\x29\x01" * MAX_MESSAGE_BYTES,
    ],
)
def test_a_large_message_that_is_none_is_refused_by_its_size(raw):
    assert excess(pb.GenerateRequest, raw) == f"{len(raw)} bytes; the limit is {MAX_MESSAGE_BYTES}"


def test_few_fields_are_looked_at(monkeypatch):
    raw = request(bytes(MAX_MESSAGE_BYTES)).SerializeToString()
    monkeypatch.setattr(image_wire, "MAX_FIELDS", 3)
    assert "the limit is" in excess(pb.GenerateRequest, raw)


def test_the_client_takes_parts_as_openais_do():
    content = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image", "image": PNG},
        {"type": "image_url", "image_url": {"url": f"sha256:{'0a' * 32}"}},
        {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,YQ==,Yg==", "fps": 2}},
        {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/mpeg;base64,Yg=="}},
    ]
    chat = chat_request("m", [{"role": "user", "content": content}], {}).chat
    assert chat.messages[0].parts[0].text == "What is it?"
    assert list(images_of(chat)) == [PNG, PNG]
    assert chat.messages[0].parts[3].image_sha256 == b"\n" * 32
    assert chat.messages[0].parts[4].video == pb.Video(frames=[b"a", b"b"], fps=2)
    assert list(sounds_of(chat)) == [b"a", b"b"]
    assert num_image_bytes(chat) == 2 * len(PNG) + 4
    with pytest.raises(
        ValueError, match="'input_file'; allowed: text, image_url with a data URL or a digest, image, video_url"
    ):
        chat_request("m", [{"role": "user", "content": [{"type": "input_file"}]}], {})
