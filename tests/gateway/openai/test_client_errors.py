"""Which errors OpenAI's own client gets from the gateway."""

import grpc
import openai
import pytest

from dormouse_api.status import CallError
from tests.gateway.openai.conftest import HI


@pytest.mark.parametrize(
    ("given", "status", "kind"),
    [
        (CallError(grpc.StatusCode.INVALID_ARGUMENT, "sampling_params.top_p is 7; allowed: 1"), 400, "invalid_request"),
        (CallError(grpc.StatusCode.PERMISSION_DENIED, "no"), 403, "permission"),
        (CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", 2.5), 429, "rate_limit"),
        (CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "late"), 504, "server"),
        (CallError(grpc.StatusCode.INTERNAL, "oh"), 500, "server"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_workers_refusal_is_the_matching_error_also_of_a_stream(client, worker, given, status, kind, stream):
    worker.fail_before = given
    with pytest.raises(openai.APIStatusError) as caught:
        await client.completions.create(model="tiny", prompt="a", stream=stream)
    error = caught.value
    assert (error.status_code, error.type) == (status, f"{kind}_error")
    assert given.message in str(error)
    assert error.param == ("top_p" if status == 400 else None)
    assert error.response.headers.get("retry-after") == ("3" if status == 429 else None)


async def test_a_model_that_is_off_is_503_with_a_time(house, client):
    await house.add("off", [], replicas=0)
    with pytest.raises(openai.InternalServerError, match=r"spec\.replicas is 0") as caught:
        await client.completions.create(model="off", prompt="a", stream=True)
    assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "30")


async def test_an_error_after_the_first_word_is_an_event_of_the_stream(client, worker):
    worker.fail_after = CallError(grpc.StatusCode.INTERNAL, "the engine died")
    stream = await client.completions.create(model="tiny", prompt="a", stream=True)
    words = [(await anext(stream)).choices[0].text for _ in range(3)]
    assert "".join(words) == "Hello dormouse"
    with pytest.raises(openai.APIError, match="the engine died"):
        await anext(stream)


async def test_an_unknown_model_is_404_and_the_known_ones_are_listed(client):
    with pytest.raises(openai.NotFoundError, match="known models: tiny") as caught:
        await client.chat.completions.create(model="other", messages=HI)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"functions": []}, "functions"),
        ({"audio": None}, "audio"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 17}, "n"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
    ],
)
async def test_what_is_not_supported_or_wrong_is_400_naming_the_field(client, worker, extra, param):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=HI, extra_body=extra)
    assert caught.value.param == param
    assert param in str(caught.value)
    assert worker.seen == []
