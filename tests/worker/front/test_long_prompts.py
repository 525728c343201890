"""Long prompts: refused by their bytes where they cannot fit, and never in the way of other callers."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.text.turns import LONG_BYTES


def chat(content):
    return pb.Chat(messages=[pb.ChatMessage(role="user", content=content)])


@pytest.mark.parametrize("kind", ["text", "chat"])
async def test_text_that_can_not_fit_is_refused_before_it_is_tokenized(house, kind):
    text = "a" * (LONG_BYTES + 1)
    refused = await house.refusal(house.generate(chat(text) if kind == "chat" else text).read())
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    # who tokenizes says how many tokens there are, who counts bytes how many there are at least
    named = [f"prompt.{kind} is at least ", "tokens", "below the model length 64", "bytes"]
    assert [word for word in named if word not in refused.details()] == [], refused.details()


async def test_tokenize_counts_what_does_not_fit_the_model(house):
    text = "a" * (LONG_BYTES + 1)
    assert len((await house.tokenize(text)).token_ids) == LONG_BYTES + 1
