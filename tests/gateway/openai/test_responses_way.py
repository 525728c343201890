"""What goes wrong at /v1/responses, who may pass, and that behind it is the same way as behind all doors."""

import grpc
import openai
import pytest

from dormouse_api.status import CallError
from dormouse_gateway.testing.workers import set_ready
from tests.gateway.clients.test_keys import write_key

ASK = {"model": "tiny", "input": "hi"}


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"include": ["web_search_call.results"]}, "include[0]"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": []}, "input"),
        ({"nonsense": 1}, "nonsense"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ],
)
async def test_what_is_not_supported_or_wrong_is_400_naming_the_field(client, worker, extra, param):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(**ASK, extra_body=extra)
    assert caught.value.param == param
    assert worker.seen == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_workers_refusal_bears_the_name_that_the_client_wrote(client, worker, stream):
    worker.fail_before = CallError(grpc.StatusCode.INVALID_ARGUMENT, "sampling_params.max_tokens is 7; allowed: 1")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(**ASK, max_output_tokens=7, stream=stream)
    assert caught.value.param == "max_output_tokens"


async def test_an_error_after_the_first_word_ends_the_stream_as_failed(client, worker):
    worker.fail_after = CallError(grpc.StatusCode.INTERNAL, "the engine died")
    events = [event async for event in await client.responses.create(**ASK, stream=True)]
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2].message == "the engine died"
    response = events[-1].response
    assert (response.status, response.error.message, response.output_text) == (
        "failed",
        "the engine died",
        "Hello dormouse",
    )


async def test_keys_hold_here_too(make_house, worker, open_client, tmp_path):
    write_key(tmp_path, "a", models=["tiny"], max_concurrent=1)
    async with make_house(api_keys_dir=tmp_path) as house:
        await house.add("tiny", [worker])
        with pytest.raises(openai.AuthenticationError):
            await open_client(house, "wrong").responses.create(**ASK)
        right = open_client(house, "a-secret")
        with pytest.raises(openai.NotFoundError, match="known models: tiny"):
            await right.responses.create(model="other", input="hi")
        worker.is_gated = True
        stream = await right.responses.create(**ASK, stream=True)
        with pytest.raises(openai.RateLimitError, match="1 requests at the same time"):
            await right.responses.create(**ASK)
        worker.gate.set()
        assert [event async for event in stream][-1].type == "response.completed"


async def test_responses_are_held_while_the_model_wakes_and_count_as_its_activity(house, worker, kube, open_client):
    await house.add("tiny", [worker], ready=False)
    raw = await open_client(house).responses.with_raw_response.create(**ASK, stream=True)
    assert (raw.status_code, raw.headers["dormouse-held"]) == (200, "true")
    worker.tell_load()
    set_ready(kube, "tiny-talker", ready=True)
    assert [event async for event in raw.parse()][-1].response.output_text == "Hello dormouse"
    metrics = house.gateway.metrics
    labels = {"model": "default/tiny", "code": "OK", "method": "Generate"}
    assert metrics.value("dormouse_gateway_requests_total", **labels) == 1
    assert metrics.value("dormouse_gateway_http_responses_total", path="/v1/responses", status="200") == 1


async def test_a_stream_goes_on_where_its_worker_died(house, two_talkers, open_client):
    stream = aiter(await open_client(house).responses.create(**ASK, stream=True))
    told = [await anext(stream)]
    while told[-1].type != "response.output_text.delta":
        told.append(await anext(stream))
    busy, idle = sorted(two_talkers, key=lambda worker: not worker.started.is_set())
    idle.gate.set()
    await busy.stop()
    told += [event async for event in stream]
    assert told[-1].response.output_text == "Hello dormouse"
    assert list(idle.seen[0].request.resume.output_token_ids) == [1]
