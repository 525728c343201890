"""Tools and thoughts over HTTP: OpenAI's client, the gateway, and a front whose engine says what the test wants."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import openai
import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import POD_UID, public_key
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.mapping import to_chat
from dormouse_gateway.testing.workers import FakeWorker
from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.ipc import AddRequest, State
from dormouse_worker.front.app import Front
from dormouse_worker.front.testing import engine_settings, front_settings, write_model
from dormouse_worker.testing.fake_engine import Script
from dormouse_worker.testing.in_process import InProcessEngine
from tests.gateway.openai.conftest import HI

MISTRAL = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}{# [TOOL_CALLS] [THINK] #}"
SPOKEN = '[THINK]H[/THINK]S[TOOL_CALLS]a[ARGS]{"x":1}'


def tool(name="a", **function):
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema, **function}}


TOOLS = [tool("a"), tool("b")]


@asynccontextmanager
async def front_of(engine, model):
    """Run a worker's front before an engine; yield what the gateway knows it by."""
    front = Front(front_settings(gateway_key=public_key(Role.GATEWAY)), engine_settings(model), lambda _: engine.spawn)
    ports = await front.start()
    try:
        await front.worker.changes.until(lambda: front.worker.board.state is State.PROFILED)
        await front.worker.command(InitializeCache(10))
        yield FakeWorker(name=f"w{ports.inference}", port=ports.inference)
    finally:
        await front.close()


@pytest.fixture
def speaking(tmp_path, house, open_client):
    """Open a client of a model that says a text, byte by byte; it has a template of Mistral's family."""

    @asynccontextmanager
    async def opened(said, template=MISTRAL):
        engine = InProcessEngine(Script(tokens=tokens_of(said)))
        async with front_of(engine, write_model(tmp_path / "model", template=template)) as worker:
            await house.add("tiny", [worker], uid=POD_UID)
            yield Speaker(open_client(house), engine, len(tokens_of(said)))

    return opened


class Speaker:
    """A client of a model that always says the same."""

    def __init__(self, client, engine, num_tokens):
        self._client, self._engine, self._num_tokens = client, engine, num_tokens

    def ask(self, **more):
        """Ask for all that it says."""
        more = {"messages": HI, "max_tokens": self._num_tokens, **more}
        return self._client.chat.completions.create(model="tiny", **more)

    @property
    def added(self):
        """Return the last request as it reached the engine."""
        return [message for message in self._engine.engine.received if isinstance(message, AddRequest)][-1]

    @property
    def grammar(self):
        """Return what the last answer was bound by."""
        return self.added.sampling.grammar.text if self.added.sampling.grammar else ""


def tokens_of(text):
    """Return the ids of the test's tokenizer: one for each byte, in the order of its alphabet, and special tokens."""
    from tokenizers import pre_tokenizers

    order = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return tuple(order.index(letter) for piece, _ in pieces for letter in piece)


END = "!"
ENDS = {"stop_token_ids": list(tokens_of(END))}  # as an end-of-sequence token does


async def test_what_is_thought_said_and_called_comes_in_fields_of_its_own(speaking):
    async with speaking(SPOKEN) as model:
        answer = await model.ask(tools=TOOLS)
        said = answer.choices[0].message
        assert (said.content, said.reasoning_content, said.reasoning) == ("S", "H", "H")
        (call,) = said.tool_calls
        assert (call.type, call.function.name, call.function.arguments) == ("function", "a", '{"x":1}')
        assert call.id.isalnum()


async def test_a_stream_says_the_same(speaking):
    async with speaking(SPOKEN + END) as model:
        stream = await model.ask(tools=TOOLS, stream=True, extra_body=ENDS)
        chunks = [chunk.choices[0] async for chunk in stream]
        deltas = [chunk.delta for chunk in chunks]
        assert "".join(delta.content or "" for delta in deltas) == "S"
        assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "H"
        parts = [part for delta in deltas for part in delta.tool_calls or ()]
        assert [(part.index, part.function.name) for part in parts if part.id] == [(0, "a")]
        assert "".join(part.function.arguments for part in parts) == '{"x":1}'
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]


@pytest.mark.parametrize("cut", [3, 22, 41], ids=["in a marker", "in a name's marker", "in arguments"])
async def test_an_answer_that_moves_to_another_worker_is_told_apart_as_if_it_had_not(tmp_path, house, open_client, cut):
    model = write_model(tmp_path / "model", template=MISTRAL)
    engines = [InProcessEngine(Script(tokens=tokens_of(SPOKEN))) for _ in range(2)]
    engines[0].is_paused = True
    async with front_of(engines[0], model) as first, front_of(engines[1], model) as second:
        await house.add("tiny", [first], uid=POD_UID)
        speaker, deltas, num_tokens = Speaker(open_client(house), engines[1], len(tokens_of(SPOKEN))), [], 0
        asked = asyncio.create_task(speaker.ask(tools=TOOLS, stream=True, extra_body={"return_token_ids": True}))
        await engines[0].until_received(lambda message: isinstance(message, AddRequest))
        engines[0].step()
        async for chunk in await asked:
            deltas.append(chunk.choices[0].delta)
            num_new = len(getattr(chunk.choices[0], "token_ids", ()))
            num_tokens += num_new
            if num_tokens == cut and num_new:
                await house.add("tiny", [first, second], uid=POD_UID)
                engines[0].die(-9)
            elif num_tokens < cut and num_new:
                engines[0].step()
    assert list(speaker.added.output_token_ids) == list(tokens_of(SPOKEN)[:cut])
    assert "".join(delta.content or "" for delta in deltas) == "S"
    assert "".join(getattr(delta, "reasoning", "") for delta in deltas) == "H"
    parts = [part for delta in deltas for part in delta.tool_calls or ()]
    assert [part.function.name for part in parts if part.id] == ["a"]
    assert "".join(part.function.arguments for part in parts) == '{"x":1}'


@pytest.mark.parametrize(
    ("more", "reason", "arguments"),
    [
        ({}, "length", {"x": 12, "y": "z!"}),
        ({"stop": "y"}, "stop", {"x": 12}),
        ({"extra_body": ENDS}, "tool_calls", {"x": 12, "y": "z"}),
    ],
)
async def test_a_call_is_whole_json_also_where_a_limit_or_a_stop_string_cut_it(speaking, more, reason, arguments):
    async with speaking('[TOOL_CALLS]a[ARGS]{"x": 12, "y": "z' + END) as model:
        ended = (await model.ask(tools=TOOLS, **more)).choices[0]
        assert (ended.finish_reason, ended.message.content) == (reason, None)
        assert json.loads(ended.message.tool_calls[0].function.arguments) == arguments


async def test_without_parallel_calls_the_first_is_all(speaking):
    async with speaking("[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{}") as model:
        for more, names in (({}, ["a", "b"]), ({"parallel_tool_calls": False}, ["a"])):
            called = (await model.ask(tools=TOOLS, **more)).choices[0].message.tool_calls
            assert [call.function.name for call in called] == names
            assert len({call.id for call in called}) == len(names)


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS, "tool_choice": "none"}])
async def test_without_tools_a_call_is_text(speaking, more):
    async with speaking("S[TOOL_CALLS]a[ARGS]{}") as model:
        said = (await model.ask(**more)).choices[0].message
        assert (said.content, said.tool_calls) == ("S[TOOL_CALLS]a[ARGS]{}", None)


async def test_a_model_of_no_family_says_everything_in_its_content(speaking):
    async with speaking("<think>a</think>b", template="{{ messages[0].content }}") as model:
        said = (await model.ask(tools=TOOLS)).choices[0].message
        assert (said.content, said.tool_calls) == ("<think>a</think>b", None)
        assert not said.model_extra


async def test_a_required_call_is_bound_by_the_schemas_and_read_from_the_list(speaking):
    async with speaking('[{"name": "b", "parameters": {"x": 1}}]' + END) as model:
        choice = (await model.ask(tools=TOOLS, tool_choice="required", extra_body=ENDS)).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls] == [
            ("b", '{"x":1}')
        ]
        assert "call_0 | call_1" in model.grammar


async def test_a_named_function_gets_the_whole_answer(speaking):
    async with speaking('{"x": 1}') as model:
        named = {"type": "function", "function": {"name": "b"}}
        stream = await model.ask(tools=TOOLS, tool_choice=named, stream=True)
        parts = [part async for chunk in stream for part in chunk.choices[0].delta.tool_calls or ()]
        assert parts[0].function.name == "b"
        assert "".join(part.function.arguments for part in parts) == '{"x":1}'
        assert "integer" in model.grammar


async def test_allowed_tools_are_all_that_the_model_is_shown(speaking):
    async with speaking('[{"name": "b", "parameters": {}}]') as model:
        allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "b"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        called = (await model.ask(tools=TOOLS, tool_choice=choice)).choices[0].message.tool_calls
        assert [call.function.name for call in called] == ["b"]
        assert "call_1" not in model.grammar


async def test_calls_and_thoughts_of_before_reach_the_template(speaking):
    template = (
        "{% for m in messages %}{{ m.role[0] }}{{ m.reasoning_content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{{ c.function.arguments.x }}{% endfor %}{{ m.tool_call_id }};{% endfor %}"
    )
    async with speaking("ok", template=template) as model:
        called = {"id": "c1", "type": "function", "function": {"name": "a", "arguments": '{"x": 7}'}}
        turns = [
            *HI,
            {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c1", "content": "8"},
        ]
        await model.ask(messages=turns, tools=TOOLS)
        assert tuple(model.added.prompt_token_ids) == tokens_of("u;awhya7;tc1;")


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice", "set without tools"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "c"}}},
            "tool_choice",
            "the function 'c'; allowed: one of tools",
        ),
        ({"tools": [tool("a"), tool("a")]}, "tools", "2 functions named 'a'"),
        (
            {"tools": [tool("a", parameters={"type": "string"})], "tool_choice": "required"},
            "tools",
            "are of type 'string'",
        ),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
            "one of the two",
        ),
    ],
)
async def test_what_cannot_be_kept_is_refused_by_the_clients_name_for_it(speaking, more, param, words):
    async with speaking("S") as model:
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            await model.ask(**more)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({}, ("auto", True)),
        ({"tool_choice": "none"}, (None, False)),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ("any_function", True)),
        ({"tool_choice": {"type": "function", "function": {"name": "a"}}}, ("function", True)),
    ],
)
def test_a_choice_says_what_is_told_apart(choice, told):
    body = {"model": "tiny", "messages": HI, "tools": TOOLS, **choice}
    asked = to_chat(body, "id").prompts[0].answer_parsing
    assert (asked.WhichOneof("forced") or ("auto" if asked.tool_calls else None), asked.tool_calls) == told
    assert asked.reasoning
    assert asked.single_call is ("parallel_tool_calls" in choice)


def test_an_unknown_function_is_refused_before_anything_is_sent():
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "z"}}]}
    body = {
        "model": "m",
        "messages": HI,
        "tools": TOOLS,
        "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
    }
    with pytest.raises(ApiError, match="the function 'z'"):
        to_chat(body, "id")
