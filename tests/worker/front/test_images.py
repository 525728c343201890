"""Images in requests as a caller sees them."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.limits import MAX_IMAGES, MAX_MESSAGE_BYTES
from dormouse_api.v1 import inference_pb2 as pb

Code = grpc.StatusCode


def part(said):
    return pb.ContentPart(text=said) if isinstance(said, str) else pb.ContentPart(image=said)


def chat(*said, **more):
    return pb.Chat(messages=[pb.ChatMessage(role="user", parts=map(part, said))], **more)


BAD = {
    "a model that sees none": (chat("hi", b"x"), "chat.messages[0].parts[1].image is set; allowed: text only"),
    "a model that hears nothing": (
        pb.Chat(messages=[pb.ChatMessage(role="user", parts=[pb.ContentPart(audio=b"x")])]),
        "parts[0].audio is set; allowed: text only: this model sees no images and hears nothing",
    ),
    "too many": (chat(*[b"x"] * (MAX_IMAGES + 1)), f"{MAX_IMAGES + 1} images; allowed: at most {MAX_IMAGES}"),
    "an empty one": (chat(b""), "an empty image"),
    "an empty part": (pb.Chat(messages=[pb.ChatMessage(role="user", parts=[pb.ContentPart()])]), "parts[0] is empty"),
    "a digest": (
        pb.Chat(messages=[pb.ChatMessage(role="user", parts=[pb.ContentPart(image_sha256=bytes(32))])]),
        "parts[0] is an image by its digest; allowed: the image, which gateways put there",
    ),
    "both": (
        pb.Chat(messages=[pb.ChatMessage(role="user", content="a", parts=[pb.ContentPart(text="b")])]),
        "chat.messages[0].parts is set beside content",
    ),
    "to be continued": (chat("hi", continue_final_message=True), "true with parts in the final message"),
    "long text": (chat("a" * MAX_MESSAGE_BYTES, b"x" * MAX_MESSAGE_BYTES), f"at most {MAX_MESSAGE_BYTES} bytes"),
}


@pytest.mark.parametrize(("asked", "words"), BAD.values(), ids=BAD)
async def test_what_cannot_be_seen_is_refused_by_name(house, asked, words):
    for call in (
        house.collect(asked),
        house.inference.Tokenize(pb.TokenizeRequest(chat=asked)),
    ):
        error = await house.refusal(call)
        assert error.code() is Code.INVALID_ARGUMENT
        assert words in error.details()


async def test_questions_of_decide_are_about_text(house):
    digest = pb.ChatMessage(role="user", parts=[pb.ContentPart(image_sha256=bytes(32))])
    error = await house.refusal(house.inference.Decide(pb.DecideRequest(chat=pb.Chat(messages=[digest]))))
    assert "parts[0] is an image by its digest" in error.details()
    error = await house.refusal(house.inference.Decide(pb.DecideRequest(chat=chat(b"x"))))
    assert (error.code(), "parts[0].image is set" in error.details()) == (Code.INVALID_ARGUMENT, True)
