"""No body makes the door fail: whatever JSON can be made to say is answered, or refused as the client's mistake."""

import asyncio
import json
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.keys import ANYBODY, Keyring
from dormouse_gateway.clients.requests import parse
from dormouse_gateway.openai.app import make_app
from dormouse_gateway.openai.doors import DOORS
from dormouse_gateway.openai.generating import Generating
from dormouse_gateway.openai.reading import MAX_DEPTH
from dormouse_gateway.router import Router

CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
GOOD = {
    CHAT: {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
        ],
        "tools": [TOOL],
        "chat_template_kwargs": {"a": {"b": [1]}},
    },
    COMPLETIONS: {"model": "tiny", "prompt": "a", "logit_bias": {"1": 1}, "stop": ["a"]},
    TOKENIZE: {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "return_token_strs": True},
    DETOKENIZE: {"model": "tiny", "tokens": [1, 2]},
    RESPONSES: {
        "model": "tiny",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "a"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "text"}},
    },
    MESSAGES: {
        "model": "tiny",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "a"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": [1]}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "a"}]},
        ],
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "thinking": {"type": "enabled", "budget_tokens": 9},
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f"},
    },
}
FIELDS = {door.path: sorted(door.schema["properties"]) for door in DOORS}


async def core(method, raw, context, admit=None):
    """Read what the gateway's core reads, as it reads it, and answer with one token."""
    async with (admit or (lambda _: nullcontext(ANYBODY)))(()):
        request = parse(method, raw)
    match request:
        case pb.TokenizeRequest():
            await context.write(pb.TokenizeResponse(token_ids=[1, 2]))
        case pb.DetokenizeRequest():
            texts = ["a" for _ in request.token_ids]
            await context.write(pb.DetokenizeResponse(text="".join(texts), token_texts=texts))
        case pb.GetModelRequest():
            await context.write(pb.GetModelResponse(max_model_len=9))
        case _:
            for choice in range(max(1, request.sampling_params.n)):
                await context.write(
                    pb.GenerateResponse(text="a", choice_index=choice, finish_reason=pb.FINISH_REASON_STOP)
                )


async def post(path, raw):
    """Return the status of a body, told to the application as a server would."""
    app = make_app(Router(on_close=lambda _: None), Generating(core, Keyring(), 30.0, waiting_s=30.0))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    said, body = [], [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive():
        return body.pop() if body else await asyncio.Event().wait()

    async def send(message):
        said.append(message)

    await app(scope, receive, send)
    answer = b"".join(message.get("body", b"") for message in said[1:])
    return said[0]["status"], answer.decode()


def refusal(path, raw):
    status, answer = asyncio.run(post(path, raw))
    return status, json.loads(answer)["error"]


def deep(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


WORDS = st.sampled_from(
    [
        "\ud800",
        "a\udfffb",
        "\ud83d\ude00",
        "\0",
        "",
        "\n",
        "1",
        "1\n",
        "١",
        "\x7f",
        "🐭",
        "{}",
        '{"\\ud800": 1}',
        "[",
        "n",
    ]
)
TEXTS = WORDS | st.text(st.characters(), max_size=8) | st.integers(0, 40).map(lambda levels: json.dumps(deep(levels)))
INTEGERS = (0, -1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**308, 10**309, 10**400)
FLOATS = (-0.0, 5e-324, 1e308, 1.5, 1.8446744073709552e19, float("inf"), float("-inf"), float("nan"))
NUMBERS = st.sampled_from((*INTEGERS, *FLOATS))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
) | st.integers(0, 40).map(deep)


@st.composite
def bodies(draw, path):
    """A good body, in which some values at any depth are replaced, and some fields added."""
    body = json.loads(json.dumps(GOOD[path]))
    for name in draw(st.lists(st.sampled_from(FIELDS[path]), max_size=3)):
        body.setdefault(name, draw(VALUES))
    for _ in range(draw(st.integers(0, 3))):
        where = draw(st.sampled_from(list(places(body))))
        holder, key = where
        holder[key] = draw(VALUES)
    for holder, _ in draw(st.lists(st.sampled_from(list(places(body))), max_size=2)):
        if isinstance(holder, dict):
            holder[draw(TEXTS)] = draw(VALUES)
    return json.dumps(body).encode()


def places(value):
    """Yield every (container, key) of a JSON value."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, (dict, list)) and item:
            yield from places(item)


@pytest.mark.parametrize("path", GOOD)
@settings(max_examples=50)
@given(data=st.data())
def test_no_json_makes_the_door_fail(path, data):
    raw = data.draw(bodies(path))
    status, answer = asyncio.run(post(path, raw))
    assert status in {200, 400, 413}, answer


@pytest.mark.parametrize("path", GOOD)
@settings(max_examples=50)
@given(data=st.data())
def test_no_bytes_make_the_door_fail(path, data):
    raw = data.draw(bodies(path))
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 6)))
    raw = raw[:start] + data.draw(st.binary(max_size=6)) + raw[end:]
    status, answer = asyncio.run(post(path, raw))
    assert status in {200, 400, 413}, answer


@pytest.mark.parametrize("path", GOOD)
def test_the_body_that_all_others_come_of_is_good(path):
    status, answer = asyncio.run(post(path, json.dumps(GOOD[path]).encode()))
    assert status == 200, answer


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"tools": [{"type": "function", "function": {"name": "f", "parameters": {"\\ud800": 1}}}]', "tools[0]"),
        (b'{"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": "\\ud800"}}}]', "tools[0]"),
        (b'{"chat_template_kwargs": {"a": [{"\\udfff": 1}]}', "chat_template_kwargs.a[0]"),
        (b'{"messages": [{"role": "user", "content": "a", "\\ud800": 1}]', "messages[0]"),
    ],
)
def test_what_is_no_text_at_any_depth_is_the_clients_mistake_and_named(raw, param):
    good = json.dumps(GOOD[CHAT])[1:-1] if b"messages" not in raw else '"model": "tiny"'
    status, error = refusal(CHAT, good.join(["{", ","]).encode() + raw[1:] + b"}")
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["param"].startswith(param)
    assert "single surrogates" in error["message"]


@pytest.mark.parametrize("where", ["parameters", "arguments", "chat_template_kwargs"])
def test_json_of_the_greatest_depth_fits_a_message_and_a_level_more_is_named(where):
    """Arguments are text: theirs is counted by itself, and what is deeper stays the text that it was."""
    for levels, fits in [(MAX_DEPTH - 5, True), (MAX_DEPTH + 1, where == "arguments")]:
        body = json.loads(json.dumps(GOOD[CHAT]))
        match where:
            case "parameters":
                body["tools"][0]["function"]["parameters"] = deep(levels)
            case "arguments":
                body["messages"][1]["tool_calls"][0]["function"]["arguments"] = json.dumps(deep(levels))
            case _:
                body["chat_template_kwargs"] = deep(levels)
        status, answer = asyncio.run(post(CHAT, json.dumps(body).encode()))
        assert (status, f"deeper than {MAX_DEPTH}" in answer) == ((200, False) if fits else (400, True)), answer
