"""What clients of OpenAI and vLLM ask for besides: many prompts, prompts told, token ids, and forms of an answer."""

import grpc
import openai
import pytest
from openai.types.chat import ChatCompletion

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.many import AT_ONCE
from tests.gateway.clients.test_keys import write_key
from tests.gateway.openai.conftest import HI

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def generated(worker):
    return [seen.request for seen in worker.seen if seen.method == "Generate"]


@pytest.mark.parametrize("prompts", [["a", "b", "c"], [[1], [2, 3], [4]]])
async def test_many_prompts_of_one_body_are_answered_in_their_order(client, worker, prompts):
    answer = await client.completions.create(model="tiny", prompt=prompts, n=2, echo=True)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert all(choice.text.endswith("Hello dormouse") for choice in answer.choices)
    if prompts[0] == "a":
        assert [choice.text[0] for choice in answer.choices] == list("aabbcc")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (15, 18)
    asked = generated(worker)
    assert len(asked) == len({request.request_id for request in asked}) == 3
    assert {request.sampling_params.n for request in asked} == {2}


async def test_many_prompts_stream_together(client):
    texts = ["", "", ""]
    stream = await client.completions.create(
        model="tiny", prompt=["a", "b", "c"], stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == ["Hello dormouse"] * 3
    assert chunk.usage.total_tokens == 24


async def test_more_prompts_than_run_at_once_are_all_answered(client):
    answer = await client.completions.create(model="tiny", prompt=["a"] * 30, max_tokens=1)
    assert [choice.text for choice in answer.choices] == ["Hello"] * 30


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_refused_ends_them_all_with_its_status(client, worker, stream):
    worker.fail_before = CallError(grpc.StatusCode.INVALID_ARGUMENT, "prompt.text is too much; allowed: less")
    with pytest.raises(openai.BadRequestError, match="too much") as caught:
        await client.completions.create(model="tiny", prompt=["a"] * 20, stream=stream)
    assert caught.value.param == "prompt"


async def test_a_client_that_leaves_frees_the_workers_of_all_its_prompts(client, worker):
    worker.is_gated = True
    stream = await client.completions.create(model="tiny", prompt=["a"] * 20, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await worker.cancelled.wait()
    assert len(generated(worker)) <= AT_ONCE


async def test_many_prompts_are_one_request_at_a_time_and_many_of_a_minute(make_house, worker, open_client, tmp_path):
    write_key(tmp_path, "a", models=["tiny"], max_concurrent=1, requests_per_minute=60)
    async with make_house(api_keys_dir=tmp_path) as house:
        await house.add("tiny", [worker])
        client = open_client(house, "a-secret")
        answer = await client.completions.create(model="tiny", prompt=["a"] * 61)
        assert len(answer.choices) == 61
        with pytest.raises(openai.RateLimitError, match="60 requests per minute"):
            await client.completions.create(model="tiny", prompt="a")


async def test_with_max_tokens_0_a_prompt_is_scored_and_nothing_is_said(client, worker):
    """As lm-eval asks for log-likelihoods."""
    answer = await client.completions.create(model="tiny", prompt=[[1, 2], [3, 1]], max_tokens=0, logprobs=1, echo=True)
    first, second = answer.choices
    assert (first.text, first.finish_reason) == ("Hello dor", "length")
    assert (first.logprobs.tokens, first.logprobs.token_logprobs) == (["Hello", " dor"], [None, -0.25])
    assert second.logprobs.tokens == ["mouse", "Hello"]
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (0, 10)
    assert {request.sampling_params.max_tokens for request in generated(worker)} == {1}


async def test_token_ids_are_told_of_prompt_and_answer(client):
    extra = {"return_token_ids": True}
    chat = await client.chat.completions.create(model="tiny", messages=HI, extra_body=extra)
    assert (chat.prompt_token_ids, chat.choices[0].token_ids) == ([1, 2], [1, 2, 3])
    completion = await client.completions.create(model="tiny", prompt=[7, 8], extra_body=extra)
    assert (completion.choices[0].prompt_token_ids, completion.choices[0].token_ids) == ([7, 8], [1, 2, 3])


async def test_a_streams_first_event_tells_the_prompts_token_ids_and_each_its_own(client):
    stream = await client.chat.completions.create(
        model="tiny", messages=HI, stream=True, extra_body={"return_token_ids": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [getattr(chunk, "prompt_token_ids", None) for chunk in chunks] == [[1, 2], *[None] * (len(chunks) - 1)]
    assert [getattr(chunk.choices[0], "token_ids", []) for chunk in chunks] == [[], [1], [2], [3], []]


async def test_prompt_logprobs_are_told_by_token_id(client):
    extra = {"prompt_logprobs": 1}
    chat = await client.chat.completions.create(model="tiny", messages=HI, extra_body=extra)
    told = {"logprob": -0.25, "rank": 1, "decoded_token": " dor"}
    assert chat.prompt_logprobs == [None, {"2": told}]
    completion = await client.completions.create(model="tiny", prompt=[7, 2], extra_body={"prompt_logprobs": 0})
    assert completion.choices[0].prompt_logprobs == [None, {"2": told | {"rank": None}}]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
                }
            },
            {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}}'},
        ),
        ({"structured_outputs": {"json": {}}}, {"json_schema": "{}"}),
        ({"structured_outputs": {"json": "{}"}}, {"json_schema": "{}"}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"structured_outputs": {"regex": "a+", "choice": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": {"options": ["a", "b"]}}),
        ({"structured_outputs": {"grammar": "start: /a/"}}, {"grammar": "start: /a/"}),
        ({"structured_outputs": {"structural_tag": {"a": 1}}}, {"structural_tag": '{"a": 1}'}),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": True, "disable_additional_properties": True}},
            {"json_schema": "{}", "disable_any_whitespace": True, "disable_additional_properties": True},
        ),
    ],
)
async def test_the_form_of_an_answer_reaches_the_worker(client, worker, asked, expected):
    await client.chat.completions.create(model="tiny", messages=HI, extra_body=asked)
    params = worker.seen[0].request.sampling_params
    assert params.HasField("structured_outputs") is (expected is not None)
    if expected is not None:
        assert params.structured_outputs == pb.StructuredOutputs(**expected)


@pytest.mark.parametrize(
    "asked",
    [
        {"structured_outputs": {"regex": "a", "json_object": True}},
        {"structured_outputs": {"json_object": False}},
        {"structured_outputs": {"json": {}}, "response_format": {"type": "json_object"}},
    ],
)
async def test_two_forms_or_none_of_them_are_refused(client, asked):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=HI, extra_body=asked)
    assert caught.value.param == "structured_outputs"


async def test_reasoning_effort_and_generation_prompt_are_the_templates(client, worker):
    await client.chat.completions.create(
        model="tiny", messages=HI, reasoning_effort="low", extra_body={"add_generation_prompt": False}
    )
    chat = worker.seen[0].request.chat
    assert (chat.template_args["reasoning_effort"], chat.add_generation_prompt) == ("low", False)


async def test_an_answer_without_extras_has_only_what_openai_says(client):
    answer = await client.chat.completions.create(model="tiny", messages=HI)
    assert isinstance(answer, ChatCompletion)
    assert not answer.model_extra
    assert not answer.choices[0].model_extra
