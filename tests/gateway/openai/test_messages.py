"""What Anthropic's own client gets from the gateway."""

import anthropic
import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from tests.gateway.openai.conftest import HI, TOLD_APART

ASK = {"model": "tiny", "max_tokens": 9, "messages": HI}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat_of(worker):
    return worker.seen[0].request.chat


async def test_a_message_is_answered_with_usage(claude, worker):
    answer = await claude.messages.create(**ASK)
    (block,) = answer.content
    assert (answer.type, answer.role, answer.model, block.type) == ("message", "assistant", "tiny", "text")
    assert (block.text, answer.stop_reason, answer.stop_sequence) == ("Hello dormouse", "end_turn", None)
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 2, 3)
    assert answer.id.startswith("msg_")
    assert answer._request_id
    assert worker.seen[0].request.sampling_params.max_tokens == 9


async def test_a_stream_tells_the_same_message_by_anthropics_events(claude):
    async with claude.messages.stream(**ASK) as stream:
        names = [event.type async for event in stream if event.type != "text"]
        whole = await stream.get_final_message()
    deltas = names.count("content_block_delta")
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert deltas == 3
    other = await claude.messages.create(**ASK)
    unlike = {"id", "content"}
    assert whole.model_dump(exclude=unlike) == other.model_dump(exclude=unlike)
    assert [block.text for block in whole.content] == ["Hello dormouse"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("max_tokens", "stop", "expected"),
    [(2, None, ("max_tokens", None)), (9, "END", ("stop_sequence", "END")), (9, None, ("end_turn", None))],
)
async def test_why_it_ended_is_told_in_anthropics_words(claude, worker, max_tokens, stop, expected, stream):
    worker.matched_stop = stop
    ask = ASK | {"max_tokens": max_tokens}
    if stream:
        async with claude.messages.stream(**ask) as events:
            answer = await events.get_final_message()
    else:
        answer = await claude.messages.create(**ask)
    assert (answer.stop_reason, answer.stop_sequence) == expected


async def test_an_answer_without_text_is_one_empty_block(claude, worker):
    worker.tokens = ()
    async with claude.messages.stream(**ASK) as stream:
        assert [block.text for block in (await stream.get_final_message()).content] == [""]


async def test_parameters_reach_the_worker(claude, worker):
    await claude.messages.create(
        **ASK,
        stop_sequences=["a", "b"],
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
        thinking={"type": "disabled"},
        metadata={"user_id": "me"},
        service_tier="auto",
        extra_body={"temperature": 0.5, "top_p": 0.25, "top_k": 7},
    )
    request = worker.seen[0].request
    params = request.sampling_params
    assert (list(params.stop), params.temperature, params.top_p, params.top_k) == (["a", "b"], 0.5, 0.25, 7)
    assert params.structured_outputs.json_schema == '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    args = request.chat.template_args
    assert (args["reasoning_effort"], args["enable_thinking"]) == ("high", False)


async def test_systems_words_are_the_first_turn_and_what_is_for_billing_is_left_out(claude, worker):
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1f2e3"},
        {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "kind."},
    ]
    more = {"role": "system", "content": "And brief."}
    await claude.messages.create(**ASK | {"messages": [more, *HI]}, system=system)
    told = [(turn.role, turn.content) for turn in chat_of(worker).messages]
    assert told == [("system", "Be\nkind.\n\nAnd brief."), ("user", "hi")]


async def test_calls_and_their_results_are_turns_as_templates_know_them(claude, worker):
    messages = [
        {"role": "user", "content": "What is it like outside?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"where": "out"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    await claude.messages.create(**ASK | {"messages": messages})
    chat = chat_of(worker)
    told = [(turn.role, turn.content, turn.tool_call_id) for turn in chat.messages[1:]]
    assert told == [
        ("assistant", "I look.", ""),
        ("tool", "rain", "c1"),
        ("tool", "Error: no", "c2"),
        ("user", "And?", ""),
    ]
    assert chat.messages[1].reasoning_content == "Hm."
    call = chat.messages[1].tool_calls[0]
    assert (call["id"], call["function"]["name"], call["function"]["arguments"]["where"]) == ("c1", "look", "out")
    assert not chat.continue_final_message


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_text_and_calls_are_blocks_in_their_order(claude, worker, stream):
    worker.parts = TOLD_APART
    if stream:
        async with claude.messages.stream(**ASK, tools=[TOOL]) as events:
            answer = await events.get_final_message()
    else:
        answer = await claude.messages.create(**ASK, tools=[TOOL])
    thought, text, call = answer.content
    assert (thought.type, thought.thinking, text.type, text.text) == ("thinking", "Hm.", "text", "I look.")
    assert (call.type, call.name, call.input) == ("tool_use", "look", {"where": "out"})
    assert call.id
    assert answer.stop_reason == "tool_use"


async def test_each_block_ends_before_the_next_begins(claude, worker):
    worker.parts = TOLD_APART
    events = [event async for event in await claude.messages.create(**ASK, tools=[TOOL], stream=True)]
    told = [(event.index, event.type.removeprefix("content_block_")) for event in events[1:-2]]
    assert told == [(index, name) for index in range(3) for name in ("start", "delta", "stop")]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, pb.AnswerParsing(reasoning=True, tool_calls=True)),
        ({"type": "any"}, pb.AnswerParsing(reasoning=True, tool_calls=True, any_function=True)),
        ({"type": "tool", "name": "look"}, pb.AnswerParsing(reasoning=True, tool_calls=True, function="look")),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            pb.AnswerParsing(reasoning=True, tool_calls=True, single_call=True),
        ),
        ({"type": "none"}, pb.AnswerParsing(reasoning=True)),
    ],
)
async def test_tools_and_the_choice_among_them_reach_the_worker(claude, worker, choice, expected):
    await claude.messages.create(**ASK, tools=[TOOL], tool_choice=choice)
    request = worker.seen[0].request
    assert request.answer_parsing == expected
    assert [tool["function"]["name"] for tool in request.chat.tools] == (["look"] if expected.tool_calls else [])


async def test_a_choice_that_the_worker_cannot_force_is_refused_under_its_name(claude, worker):
    words = "answer_parsing.any_function is true; allowed: models of a known family"
    worker.fail_before = CallError(grpc.StatusCode.INVALID_ARGUMENT, words)
    with pytest.raises(anthropic.BadRequestError, match="tool_choice: answer_parsing"):
        await claude.messages.create(**ASK, tools=[TOOL], tool_choice={"type": "any"})


async def test_tools_count_as_tokens_too(claude, worker):
    await claude.messages.count_tokens(model="tiny", messages=HI, tools=[TOOL])
    assert worker.seen[0].request.chat.tools[0]["function"]["parameters"]["type"] == "object"


async def test_the_assistants_last_turn_is_gone_on_with(claude, worker):
    await claude.messages.create(**ASK | {"messages": [*HI, {"role": "assistant", "content": "It is"}]})
    assert chat_of(worker).continue_final_message
    assert not chat_of(worker).HasField("add_generation_prompt")


async def test_a_coding_agents_request_is_answered(claude, worker):
    """Everything that Claude Code sends of its own accord."""
    stream = await claude.messages.create(
        model="tiny",
        max_tokens=32_000,
        stream=True,
        system=[{"type": "text", "text": "You are kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>a</system-reminder>"},
                    {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ],
        tools=[TOOL | {"input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}}],
        metadata={"user_id": "user_1_account__session_2"},
        thinking={"type": "adaptive", "budget_tokens": 0},
        output_config={"effort": "medium"},
        extra_body={
            "temperature": 1,
            "betas": ["interleaved-thinking-2025-05-14"],
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        },
        extra_query={"beta": "true"},
        extra_headers={"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "x-app": "cli"},
    )
    assert [event.type async for event in stream][-1] == "message_stop"
    args = chat_of(worker).template_args
    assert (args["reasoning_effort"], args["enable_thinking"]) == ("medium", True)


async def test_tokens_are_counted_of_the_same_conversation_without_making_any(claude, worker):
    told = await claude.messages.count_tokens(model="tiny", messages=HI, system="Be kind.")
    assert told.input_tokens == 2
    await claude.messages.create(**ASK, system="Be kind.")
    asked, made = worker.seen
    assert (asked.method, made.method) == ("Tokenize", "Generate")
    assert asked.request.chat == made.request.chat
