"""Every form, choice and beginning that a door knows reaches the worker as what it is; see test_whole_bodies.py."""

from __future__ import annotations

import json

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.messages.mapping import count
from dormouse_gateway.openai.turns import with_one_beginning
from tests.gateway.openai.test_whole_bodies import HI, LEAST, told, wish_of

SCHEMA = {"type": "object", "title": "Größe"}
WRITTEN = {"json_schema": json.dumps(SCHEMA, ensure_ascii=False)}
NAMED = {"type": "json_schema", "name": "size", "schema": SCHEMA}
CHAT_FORM = {"type": "json_schema", "json_schema": {"name": "size", "schema": SCHEMA, "strict": None}}
TAG = {"structures": [], "triggers": []}
FORMS = [
    ("chat", {"response_format": CHAT_FORM}, WRITTEN),
    ("chat", {"response_format": {"type": "json_object"}}, {"json_object": True}),
    ("chat", {"response_format": {"type": "text"}}, None),
    ("message", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, WRITTEN),
    ("response", {"text": {"format": NAMED}}, WRITTEN),
    ("response", {"text": {"format": {"type": "json_object"}}}, {"json_object": True}),
    ("response", {"text": {"format": {"type": "text"}}}, None),
    ("completion", {"structured_outputs": {"json": SCHEMA}}, WRITTEN),
    ("completion", {"structured_outputs": {"json": WRITTEN["json_schema"]}}, WRITTEN),
    ("completion", {"structured_outputs": {"json_object": True}}, {"json_object": True}),
    ("completion", {"structured_outputs": {"regex": "a+", "json_object": False}}, {"regex": "a+"}),
    ("completion", {"structured_outputs": {"choice": ["a", "b"], "json": None}}, {"choice": {"options": ["a", "b"]}}),
    ("completion", {"structured_outputs": {"grammar": "start: A"}}, {"grammar": "start: A"}),
    ("completion", {"structured_outputs": {"structural_tag": TAG}}, {"structural_tag": json.dumps(TAG)}),
    (
        "completion",
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        {"regex": "a", "disable_any_whitespace": True},
    ),
    (
        "completion",
        {"structured_outputs": {"regex": "a", "disable_additional_properties": True}},
        {"regex": "a", "disable_additional_properties": True},
    ),
]


@pytest.mark.parametrize(("door", "more", "form"), FORMS)
def test_an_answers_form_is_asked_for(door, more, form):
    [request], _ = told(wish_of(door, LEAST[door] | more))
    assert request["sampling_params"].get("structured_outputs") == form


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"regex": "a", "choice": ["a"]},
            "structured_outputs is regex, choice of its kinds; allowed: one of json, json_o",
        ),
        (
            {},
            "structured_outputs is none of its kinds; allowed: one of json, json_object, regex, choice, grammar",
        ),
    ],
)
def test_one_form_is_asked_for(more, words):
    with pytest.raises(ApiError) as caught:
        wish_of("chat", LEAST["chat"] | {"structured_outputs": more})
    assert str(caught.value.message).startswith(words)


def test_two_fields_for_a_form_are_refused():
    with pytest.raises(ApiError) as caught:
        wish_of("chat", LEAST["chat"] | {"structured_outputs": {"regex": "a"}, "response_format": CHAT_FORM})
    assert (
        caught.value.message == "structured_outputs is set beside response_format json_schema; allowed: one of the two"
    )


TOOLS = {
    "chat": [{"type": "function", "function": {"name": name}} for name in "ab"],
    "message": [{"name": name, "input_schema": {"type": "object"}} for name in "ab"],
    "response": [{"type": "function", "name": name, "parameters": None} for name in "ab"],
}
CHAT_FUNCTION = {"type": "function", "function": {"name": "a"}}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]}
ASKED = {"tool_calls": True, "reasoning": True}
NO_TOOLS = {"reasoning": True}
ONE = {"single_call": True}


@pytest.mark.parametrize(
    ("door", "more", "parsing", "shown"),
    [
        ("chat", {}, ASKED, "ab"),
        ("chat", {"tool_choice": "auto"}, ASKED, "ab"),
        ("chat", {"tool_choice": "none"}, NO_TOOLS, ""),
        ("chat", {"tool_choice": "required"}, ASKED | {"any_function": True}, "ab"),
        ("chat", {"tool_choice": CHAT_FUNCTION}, ASKED | {"function": "a"}, "ab"),
        ("chat", {"parallel_tool_calls": False}, ASKED | ONE, "ab"),
        ("chat", {"parallel_tool_calls": True}, ASKED, "ab"),
        ("message", {"tool_choice": {"type": "auto"}}, ASKED, "ab"),
        ("message", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, ASKED | ONE, "ab"),
        ("message", {"tool_choice": {"type": "none"}}, NO_TOOLS, ""),
        ("message", {"tool_choice": {"type": "any"}}, ASKED | {"any_function": True}, "ab"),
        ("message", {"tool_choice": {"type": "tool", "name": "a"}}, ASKED | {"function": "a"}, "ab"),
        ("response", {"tool_choice": "required"}, ASKED | {"any_function": True}, "ab"),
        ("response", {"tool_choice": {"type": "function", "name": "a"}}, ASKED | {"function": "a"}, "ab"),
        ("response", {"tool_choice": ALLOWED}, ASKED, "b"),
    ],
)
def test_a_choice_of_tools_is_kept(door, more, parsing, shown):
    [request], _ = told(wish_of(door, LEAST[door] | {"tools": TOOLS[door]} | more))
    assert request["answer_parsing"] == parsing
    assert "".join(tool["function"]["name"] for tool in request["chat"].get("tools", ())) == shown


THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}


@pytest.mark.parametrize(
    ("door", "more", "messages"),
    [
        ("message", {"system": "Be short."}, [{"role": "system", "content": "Be short."}, HI]),
        ("message", {"system": ""}, [HI]),
        ("response", {"input": [THOUGHT]}, [{"role": "assistant", "reasoning_content": "Hm."}]),
    ],
)
def test_a_beginning_is_a_turn(door, more, messages):
    [request], _ = told(wish_of(door, LEAST[door] | more))
    assert request["chat"]["messages"] == messages


@pytest.mark.parametrize("pictured", [0, 1])
def test_a_beginning_with_a_picture_stays_alone(pictured):
    turns = [pb.ChatMessage(role="system", content="a"), pb.ChatMessage(role="system", content="b")]
    turns[pictured].parts.add(image=b"pixels")
    assert with_one_beginning(turns) == turns


class Texts:
    """Counts, and keeps what was asked."""

    async def tokenize(self, asked):
        self.asked = asked
        return type("Answer", (), {"token_ids": [1, 2, 3]})


async def test_a_count_is_of_the_conversation():
    texts = Texts()
    assert await count(LEAST["message"] | {"system": "Be short."}, texts) == {"input_tokens": 3}
    assert texts.asked.model == "tiny"
    assert [turn.content for turn in texts.asked.chat.messages] == ["Be short.", "hi"]
