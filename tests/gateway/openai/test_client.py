"""What OpenAI's own client gets from the gateway."""

import asyncio

import openai
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.reading import parse_arguments
from dormouse_gateway.testing.workers import set_ready
from tests.gateway.clients.test_keys import write_key
from tests.gateway.openai.conftest import HI

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_chat_is_answered_with_usage(client, worker):
    answer = await client.chat.completions.create(model="tiny", messages=HI)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello dormouse")
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 3, 8)
    assert usage.prompt_tokens_details.cached_tokens == 2
    request = worker.seen[0].request
    assert [(turn.role, turn.content) for turn in request.chat.messages] == [("user", "hi")]
    assert answer.id == f"chatcmpl-{request.request_id}"


async def test_what_is_predicted_is_counted(client, worker):
    expected = {"type": "content", "content": "Hello there"}
    answer = await client.chat.completions.create(model="tiny", messages=HI, prediction=expected)
    counted = answer.usage.completion_tokens_details
    assert (counted.accepted_prediction_tokens, counted.rejected_prediction_tokens) == (2, 1)
    assert worker.seen[0].request.prediction == "Hello there"


async def test_a_chat_streams_word_by_word_and_tells_usage_if_asked(client):
    stream = await client.chat.completions.create(
        model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello dormouse"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, None, "stop"]
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 8)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.usage for chunk in chunks[:-1]} == {None}


async def test_without_being_asked_a_stream_has_no_usage(client):
    stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True)
    assert all(chunk.choices for chunk in [chunk async for chunk in stream])


async def test_a_text_is_completed_in_one_piece_and_as_a_stream(client, worker):
    answer = await client.completions.create(model="tiny", prompt="Say", stop=["x"], seed=3, max_tokens=2)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello dor", "length")
    stream = await client.completions.create(model="tiny", prompt=[1, 2], stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello dormouse"
    assert chunks[-1].choices[0].finish_reason == "stop"
    first, second = (seen.request for seen in worker.seen)
    assert (first.text, list(first.sampling_params.stop), first.sampling_params.seed) == ("Say", ["x"], 3)
    assert (list(second.token_ids.ids), second.sampling_params.max_tokens) == ([1, 2], 16)


async def test_several_choices_are_told_apart(client):
    answer = await client.chat.completions.create(model="tiny", messages=HI, n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [
        (index, "Hello dormouse") for index in range(3)
    ]
    texts = ["", "", ""]
    async for chunk in await client.chat.completions.create(model="tiny", messages=HI, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ["Hello dormouse"] * 3


async def test_tools_reach_the_template_with_arguments_as_objects(client, worker):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
    ]
    await client.chat.completions.create(model="tiny", messages=messages, tools=[tool])
    await client.chat.completions.create(model="tiny", messages=messages, tools=[tool], tool_choice="none")
    with_tools, without = (seen.request.chat for seen in worker.seen)
    assert with_tools.tools[0]["function"]["name"] == "f"
    assert list(without.tools) == []
    call = with_tools.messages[1].tool_calls[0]
    assert list(call["function"]["arguments"]["a"]) == [1]
    assert (with_tools.messages[2].tool_call_id, with_tools.messages[2].content) == ("c", "a\nb")


async def test_vllms_fields_are_taken_in_the_body(client, worker):
    extra = {
        "top_k": -1,
        "min_p": 0.5,
        "repetition_penalty": 2,
        "min_tokens": 1,
        "ignore_eos": True,
        "stop_token_ids": [5],
        "include_stop_str_in_output": True,
        "bad_words": ["w"],
        "allowed_token_ids": [1, 2],
        "priority": -3,
        "skip_special_tokens": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    await client.chat.completions.create(
        model="tiny",
        messages=HI,
        temperature=0,
        top_p=0.5,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"3": 5},
        max_completion_tokens=4,
        max_tokens=9,
        user="me",
        extra_body=extra,
    )
    request = worker.seen[0].request
    params = request.sampling_params
    expected = pb.SamplingParams(
        temperature=0,
        top_p=0.5,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={3: 5},
        max_tokens=4,
        top_k=0,
        min_p=0.5,
        repetition_penalty=2,
        min_tokens=1,
        ignore_eos=True,
        stop_token_ids=[5],
        include_stop_str_in_output=True,
        bad_words=["w"],
        allowed_token_ids=[1, 2],
        skip_special_tokens=False,
        seed=params.seed,
    )
    assert params == expected
    assert request.priority == -3
    assert request.chat.template_args["enable_thinking"] is False


async def test_models_are_listed_and_found_though_they_sleep(house, client):
    await house.add("asleep", [], model="sleepy")
    listed = (await client.models.list()).data
    assert [(model.id, model.owned_by) for model in listed] == [("sleepy", "default"), ("tiny", "default")]
    assert (await client.models.retrieve("default/asleep")).id == "default/asleep"
    with pytest.raises(openai.NotFoundError, match="known models: sleepy, tiny"):
        await client.models.retrieve("other")


async def test_a_stream_for_a_model_that_wakes_begins_at_once_and_is_answered_when_it_is_awake(
    house, worker, kube, open_client
):
    await house.add("tiny", [worker], ready=False)
    raw = await open_client(house).completions.with_raw_response.create(model="tiny", prompt="a", stream=True)
    assert (raw.status_code, raw.headers["dormouse-held"]) == (200, "true")
    worker.tell_load()
    set_ready(kube, "tiny-talker", ready=True)
    chunks = [chunk async for chunk in raw.parse()]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello dormouse"


async def test_request_id_and_trace_go_to_the_worker_and_the_id_comes_back(client, worker):
    headers = {"x-request-id": "my-1", "traceparent": TRACE, "tracestate": "a=b", "cookie": "c", "x-other": "o"}
    raw = await client.completions.with_raw_response.create(model="tiny", prompt="a", extra_headers=headers)
    assert raw.headers["x-request-id"] == "my-1"
    assert raw.headers["dormouse-start"] == "warm"
    seen = worker.seen[0]
    assert seen.request.request_id == "my-1"
    assert (seen.values("traceparent"), seen.values("tracestate")) == ([TRACE], ["a=b"])
    assert {key for key, _ in seen.metadata if key.startswith(("x-", "cookie", "auth"))} == set()
    assert len(seen.values("dormouse-cache-salt")) == 1, "as over gRPC, the key decides who shares prefixes"


async def test_over_http_a_caller_is_the_same_as_over_grpc_whatever_its_headers_say(house, client, worker):
    await client.completions.create(
        model="tiny", prompt="a", extra_headers={"x-forwarded-for": "10.1.1.1", "dormouse-caller": "somebody"}
    )
    call = house.stub.Generate(pb.GenerateRequest(model="tiny", text="a"))
    assert [message async for message in call]
    over_http, over_grpc = (seen.values("dormouse-caller") for seen in worker.seen)
    assert len(over_http) == 1
    assert over_http == over_grpc


async def test_who_asks_for_a_tokens_text_is_the_same_caller(client, worker):
    await client.completions.create(model="tiny", prompt="a", logprobs=1, echo=True, max_tokens=1)
    assert len(worker.seen) > 1
    assert len({tuple(seen.values("dormouse-caller")) for seen in worker.seen}) == 1


async def test_a_client_that_goes_away_frees_the_worker(client, worker):
    worker.is_gated = True
    stream = await client.completions.create(model="tiny", prompt="a", stream=True)
    await anext(aiter(stream))
    await stream.close()
    await worker.cancelled.wait()


async def test_a_client_that_goes_away_before_its_whole_answer_frees_the_worker_too(client, worker):
    worker.is_gated = True
    asking = asyncio.create_task(client.completions.create(model="tiny", prompt="a"))
    await worker.started.wait()
    asking.cancel()
    await worker.cancelled.wait()


async def test_keys_hold_here_as_they_do_for_grpc(make_house, worker, open_client, tmp_path):
    write_key(tmp_path, "a", models=["tiny"], max_concurrent=1, requests_per_minute=60)
    async with make_house(api_keys_dir=tmp_path) as house:
        await house.add("tiny", [worker])
        await house.add("secret", [])
        wrong, right = open_client(house, "wrong"), open_client(house, "a-secret")
        for ask in (wrong.models.list(), wrong.models.retrieve("tiny"), wrong.completions.create(model="x", prompt="")):
            with pytest.raises(openai.AuthenticationError) as unknown:
                await ask
            assert unknown.value.code == "invalid_api_key"
            assert unknown.value.response.headers["www-authenticate"] == "Bearer"
        assert [model.id for model in (await right.models.list()).data] == ["tiny"]
        with pytest.raises(openai.NotFoundError, match=r"known models: tiny$"):
            await right.completions.create(model="secret", prompt="a")
        worker.is_gated = True
        stream = await right.completions.create(model="tiny", prompt="a", stream=True, logprobs=0)
        with pytest.raises(openai.RateLimitError, match="1 requests at the same time"):
            await right.completions.create(model="tiny", prompt="a")
        worker.gate.set()
        assert len([chunk async for chunk in stream]) == 4, "asking what tokens look like is no second request"


async def test_requests_count_in_the_same_metrics_and_are_activity(house, client):
    await client.completions.create(model="tiny", prompt="a")
    metrics = house.gateway.metrics
    labels = {"model": "default/tiny", "code": "OK", "method": "Generate"}
    assert metrics.value("dormouse_gateway_requests_total", **labels) == 1
    with pytest.raises(openai.BadRequestError):
        await client.completions.create(model="tiny", prompt="")
    with pytest.raises(openai.NotFoundError):
        await client.images.generate(model="tiny", prompt="a")
    counted = {"/v1/completions": ("200", "400"), "other": ("404",)}
    for path, statuses in counted.items():
        for status in statuses:
            assert metrics.value("dormouse_gateway_http_responses_total", path=path, status=status) == 1


@pytest.mark.parametrize("text", ["[]", "{", '"a"', '{"a": "\\ud800"}', "[" * 10_000])
def test_arguments_that_are_no_object_stay_as_the_model_wrote_them(text):
    assert parse_arguments(text) == text
