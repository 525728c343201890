"""What goes wrong at Anthropic's door, who may pass it, and that behind it is the same way as behind all others."""

import anthropic
import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_gateway.clients.salts import presented_key
from dormouse_gateway.openai.headers import to_metadata
from dormouse_gateway.testing.workers import set_ready
from tests.gateway.clients.test_keys import write_key
from tests.gateway.openai.conftest import HI

ASK = {"model": "tiny", "max_tokens": 9, "messages": HI}


@pytest.mark.parametrize(
    ("given", "kind", "status"),
    [
        (
            CallError(grpc.StatusCode.INVALID_ARGUMENT, "sampling_params.stop is 5 strings"),
            "invalid_request_error",
            400,
        ),
        (CallError(grpc.StatusCode.PERMISSION_DENIED, "no"), "permission_error", 403),
        (CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", 2.5), "rate_limit_error", 429),
        (CallError(grpc.StatusCode.INTERNAL, "oh"), "api_error", 500),
        (CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "late"), "timeout_error", 504),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_workers_refusal_is_anthropics_error_also_of_a_stream(claude, worker, given, kind, status, stream):
    worker.fail_before = given
    with pytest.raises(anthropic.APIStatusError) as caught:
        await claude.messages.create(**ASK, stop_sequences=["a"], stream=stream)
    error = caught.value
    assert (error.status_code, error.type, error.body["type"]) == (status, kind, "error")
    assert given.message in error.api_message
    assert ("stop_sequences" in error.api_message) is (status == 400)
    assert error.request_id == error.body["request_id"]
    assert error.response.headers.get("retry-after") == ("3" if status == 429 else None)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, r"tools\[0\]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice is set without tools"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, r"context_management.edits\[0\].type"),
        ({"nonsense": 1}, "nonsense is not supported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            r"messages\[0\].content\[0\].source is missing",
        ),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences is 5 items"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
    ],
)
async def test_what_is_wrong_is_named(claude, worker, body, words):
    with pytest.raises(anthropic.BadRequestError, match=words) as caught:
        await claude.messages.create(**ASK, extra_body=body)
    assert (caught.value.type, worker.seen) == ("invalid_request_error", [])


async def test_an_error_after_the_first_word_is_an_event_of_the_stream(claude, worker):
    worker.fail_after = CallError(grpc.StatusCode.INTERNAL, "the engine died")
    told = []
    with pytest.raises(anthropic.APIStatusError, match="the engine died") as caught:
        async with claude.messages.stream(**ASK) as stream:
            told.extend([text async for text in stream.text_stream])
    assert caught.value.type == "api_error"


async def test_keys_hold_whichever_way_they_come(make_house, worker, open_anthropic, tmp_path):
    write_key(tmp_path, "a", models=["tiny"], max_concurrent=1, requests_per_minute=60)
    async with make_house(api_keys_dir=tmp_path) as house:
        await house.add("tiny", [worker])
        wrong, right = open_anthropic(house, "wrong"), open_anthropic(house, "a-secret")
        for ask in (wrong.messages.create(**ASK), wrong.messages.count_tokens(model="tiny", messages=HI)):
            with pytest.raises(anthropic.AuthenticationError) as unknown:
                await ask
            assert unknown.value.type == "authentication_error"
        with pytest.raises(anthropic.NotFoundError, match="known models: tiny"):
            await right.messages.create(**ASK | {"model": "other"})
        bearer = open_anthropic(house, None, auth_token="a-secret")
        assert (await bearer.messages.create(**ASK)).content[0].text == "Hello dormouse"
        worker.is_gated = True
        async with right.messages.stream(**ASK) as stream:
            with pytest.raises(anthropic.RateLimitError, match="1 requests at the same time"):
                await right.messages.create(**ASK)
            worker.gate.set()
            assert await stream.get_final_text() == "Hello dormouse"


async def test_a_model_that_is_off_is_overloaded_with_a_time(house, claude):
    await house.add("off", [], replicas=0)
    with pytest.raises(anthropic.APIStatusError, match=r"spec\.replicas is 0") as caught:
        await claude.messages.create(**ASK | {"model": "off"}, stream=True)
    assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")
    assert caught.value.response.headers["retry-after"] == "30"


def test_a_key_that_is_sent_in_both_ways_is_one_and_two_are_two():
    mine, other = (b"x-api-key", b"a"), (b"authorization", b"Bearer b")
    assert presented_key(to_metadata([mine, (b"Authorization", b"Bearer a")])) == b"a"
    with pytest.raises(CallError, match="authorization is given 2 times"):
        presented_key(to_metadata([mine, other]))


async def test_messages_are_held_while_the_model_wakes_and_count_as_its_activity(house, worker, kube, open_anthropic):
    await house.add("tiny", [worker], ready=False)
    claude = open_anthropic(house)
    async with claude.messages.stream(**ASK) as stream:
        assert stream.response.headers["dormouse-held"] == "true"
        worker.tell_load()
        set_ready(kube, "tiny-talker", ready=True)
        assert await stream.get_final_text() == "Hello dormouse"
    metrics = house.gateway.metrics
    labels = {"model": "default/tiny", "code": "OK", "method": "Generate"}
    assert metrics.value("dormouse_gateway_requests_total", **labels) == 1
    assert metrics.value("dormouse_gateway_http_responses_total", path="/v1/messages", status="200") == 1


async def test_a_stream_goes_on_where_its_worker_died(house, two_talkers, open_anthropic):
    async with open_anthropic(house).messages.stream(**ASK) as stream:
        words = aiter(stream.text_stream)
        first = await anext(words)
        busy, idle = sorted(two_talkers, key=lambda worker: not worker.started.is_set())
        idle.gate.set()
        await busy.stop()
        assert first + "".join([word async for word in words]) == "Hello dormouse"
        assert (await stream.get_final_message()).usage.output_tokens == 3
    assert list(idle.seen[0].request.resume.output_token_ids) == [1]


async def test_a_client_that_goes_away_frees_the_worker(claude, worker):
    worker.is_gated = True
    async with claude.messages.stream(**ASK) as stream:
        await anext(aiter(stream))
    await worker.cancelled.wait()
