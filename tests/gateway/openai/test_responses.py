"""What OpenAI's own client gets from /v1/responses."""

import json

import pytest
from pydantic import BaseModel

from dormouse_api.v1 import inference_pb2 as pb
from tests.gateway.openai.conftest import TOLD_APART

ASK = {"model": "tiny", "input": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"where": "out"}'}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


def part(text):
    return {"type": "input_text", "text": text}


def chat_of(worker):
    return worker.seen[0].request.chat


async def test_a_response_is_answered_with_usage(client):
    answer = await client.responses.create(**ASK, metadata={"a": "b"})
    assert (answer.object, answer.status, answer.model, answer.error) == ("response", "completed", "tiny", None)
    (item,) = answer.output
    assert (item.type, item.role, item.status, answer.output_text) == (
        "message",
        "assistant",
        "completed",
        "Hello dormouse",
    )
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (5, 3, 8)
    assert usage.input_tokens_details.cached_tokens == 2
    assert (answer.store, answer.previous_response_id, answer.metadata) == (False, None, {"a": "b"})
    assert answer.id.startswith("resp_")


async def test_a_stream_tells_the_same_response_in_openais_order(client):
    async with client.responses.stream(**ASK) as stream:
        events = [event async for event in stream]
        whole = await stream.get_final_response()
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(11))
    assert "".join(event.delta for event in events[4:7]) == whole.output_text == "Hello dormouse"
    assert whole.usage.total_tokens == 8
    assert plain(whole) == plain(await client.responses.create(**ASK))


def plain(response):
    """Return what of a response does not differ from call to call, however it was told."""
    told = json.loads(json.dumps(response.to_dict(), default=str))
    for item in told["output"]:
        item.pop("id")
        item.pop("call_id", None)
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return {name: it for name, it in told.items() if name not in {"id", "created_at"}}


@pytest.mark.parametrize("told", ["created", "streamed"])
async def test_thoughts_text_and_calls_are_items_in_their_order(client, worker, told):
    worker.parts = TOLD_APART
    answer = await client.responses.create(**ASK, tools=[TOOL])
    if told == "streamed":
        events = [event async for event in await client.responses.create(**ASK, tools=[TOOL], stream=True)]
        assert plain(events[-1].response) == plain(answer)
        answer = events[-1].response
    thought, message, call = answer.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "Hm.")
    assert (message.type, answer.output_text) == ("message", "I look.")
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "look", {"where": "out"})
    assert call.call_id
    assert (answer.status, worker.seen[0].request.answer_parsing.tool_calls) == ("completed", True)


async def test_each_item_ends_before_the_next_begins(client, worker):
    worker.parts = TOLD_APART
    events = [event async for event in await client.responses.create(**ASK, tools=[TOOL], stream=True)]
    names = [(getattr(event, "output_index", None), event.type.removeprefix("response.")) for event in events]
    assert names[2:-1] == [
        (0, "output_item.added"),
        (0, "content_part.added"),
        (0, "reasoning_text.delta"),
        (0, "reasoning_text.done"),
        (0, "content_part.done"),
        (0, "output_item.done"),
        (1, "output_item.added"),
        (1, "content_part.added"),
        (1, "output_text.delta"),
        (1, "output_text.done"),
        (1, "content_part.done"),
        (1, "output_item.done"),
        (2, "output_item.added"),
        (2, "function_call_arguments.delta"),
        (2, "function_call_arguments.done"),
        (2, "output_item.done"),
    ]
    ids = {event.item_id for event in events if getattr(event, "item_id", None)}
    assert ids <= {item.id for item in events[-1].response.output}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_its_length_cuts_is_incomplete(client, stream):
    told = await client.responses.create(**ASK, max_output_tokens=2, stream=stream)
    answer = [event async for event in told][-1].response if stream else told
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.output[0].status, answer.output_text) == ("incomplete", "Hello dor")


async def test_an_answer_without_text_is_one_empty_message(client, worker):
    worker.tokens = ()
    assert [item.content[0].text for item in (await client.responses.create(**ASK)).output] == [""]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_told_of_each_token(client, stream):
    ask = ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "stream": stream}
    told = await client.responses.create(**ask)
    if stream:
        events = [event async for event in told]
        deltas = [event.logprobs for event in events if event.type == "response.output_text.delta"]
        assert [[token.token for token in tokens] for tokens in deltas] == [["Hello"], [" dor"], ["mouse"]]
        told = events[-1].response
    tokens = told.output[0].content[0].logprobs
    assert [(token.token, token.logprob) for token in tokens] == [("Hello", -0.25), (" dor", -0.25), ("mouse", -0.25)]
    assert [top.token for top in tokens[0].top_logprobs] == ["Hello"]


async def test_parameters_reach_the_worker(client, worker):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await client.responses.create(
        **ASK,
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=7,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}},
        tools=[TOOL],
        tool_choice={"type": "function", "name": "look"},
        parallel_tool_calls=False,
        store=False,
        truncation="disabled",
        include=["reasoning.encrypted_content"],
    )
    request = worker.seen[0].request
    params = request.sampling_params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.25, 7)
    assert json.loads(params.structured_outputs.json_schema) == schema
    assert request.chat.template_args["reasoning_effort"] == "low"
    assert request.chat.tools[0]["function"]["name"] == "look"
    assert (request.answer_parsing.function, request.answer_parsing.single_call) == ("look", True)
    assert not params.HasField("logprobs")


async def test_a_parsed_answer_is_what_the_schema_says(client, worker):
    class Nut(BaseModel):
        size: int

    worker.parts = {1: [pb.AnswerPart(content='{"size": '), pb.AnswerPart(content="3}")]}
    answer = await client.responses.parse(**ASK, text_format=Nut)
    assert answer.output_parsed == Nut(size=3)


async def test_a_conversation_is_turns_as_templates_know_them(client, worker):
    items = [
        {"role": "developer", "content": "And brief."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "What is it"}, {"type": "input_text", "text": "like?"}],
        },
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        CALL,
        CALL | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"role": "assistant", "content": "Both."},
        {"role": "assistant", "content": "Really."},
        {"role": "user", "content": "So?"},
    ]
    await client.responses.create(model="tiny", input=items, instructions="Be kind.")
    chat = chat_of(worker)
    assert [(turn.role, turn.content, turn.tool_call_id) for turn in chat.messages] == [
        ("system", "Be kind.\n\nAnd brief.", ""),
        ("user", "What is it\nlike?", ""),
        ("assistant", "I look.", ""),
        ("tool", "rain", "c1"),
        ("tool", "sun", "c2"),
        ("assistant", "Both.", ""),
        ("assistant", "Really.", ""),
        ("user", "So?", ""),
    ]
    said = chat.messages[2]
    assert (said.reasoning_content, len(said.tool_calls)) == ("Hm.", 2)
    assert said.tool_calls[0]["function"]["arguments"]["where"] == "out"


async def test_a_coding_agents_request_is_answered(client, worker):
    """Everything that Codex sends of its own accord, its tools of OpenAI's switched off."""
    stream = await client.responses.create(
        model="tiny",
        instructions="You are kind.",
        input=[
            {"type": "message", "role": "developer", "content": [part("<permissions>a</permissions>")]},
            {"type": "message", "role": "user", "content": [part("<environment_context>a</environment_context>")]},
            {"type": "message", "role": "user", "content": [part("hi")]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
            CALL,
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ],
        tools=[TOOL],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="0199",
        extra_body={"client_metadata": {"x-codex-installation-id": "1"}},
    )
    assert [event.type async for event in stream][-1] == "response.completed"
    roles = [turn.role for turn in chat_of(worker).messages]
    assert roles == ["system", "user", "user", "assistant", "tool"]


async def test_what_an_answer_says_can_be_sent_back_as_it_is(client, worker):
    worker.parts = TOLD_APART
    answer = await client.responses.create(**ASK, tools=[TOOL])
    said = [item.to_dict() for item in answer.output]
    result = {"type": "function_call_output", "call_id": answer.output[2].call_id, "output": "rain"}
    await client.responses.create(model="tiny", input=[{"role": "user", "content": "hi"}, *said, result])
    turns = worker.seen[1].request.chat.messages
    assert [(turn.role, turn.content, turn.reasoning_content) for turn in turns] == [
        ("user", "hi", ""),
        ("assistant", "I look.", "Hm."),
        ("tool", "rain", ""),
    ]
