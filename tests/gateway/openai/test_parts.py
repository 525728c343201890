"""What a worker tells apart becomes text, thoughts and calls of pieces; calls have ids, and end a choice."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.answers import Answer, as_events, in_one_piece
from dormouse_gateway.openai.choices import Choices
from dormouse_gateway.openai.parts import Parts, Told, merged, new_id
from dormouse_gateway.openai.shapes import CHAT, Head, Piece, ToolCall
from dormouse_gateway.openai.wish import Wish


def begins(index, name):
    return pb.AnswerPart(call=pb.ToolCall(index=index, name=name))


def goes_on(index, json):
    return pb.AnswerPart(arguments=pb.ToolCallArguments(index=index, json=json))


def message(*parts, choice=0, **fields):
    return pb.GenerateResponse(text="<raw>", parsed=True, parts=parts, choice_index=choice, **fields)


def parts():
    ids = (f"id{number}" for number in itertools.count())
    return Parts(make_id=lambda: next(ids))


def test_a_message_that_was_not_parsed_says_its_text():
    assert parts().read(pb.GenerateResponse(text="a <tool_call>")) == Told("a <tool_call>")


def test_content_thoughts_and_calls_come_apart():
    said = message(
        pb.AnswerPart(reasoning="h"),
        pb.AnswerPart(content="a"),
        begins(0, "f"),
        goes_on(0, "{"),
        goes_on(0, "}"),
        begins(1, "g"),
        pb.AnswerPart(content="b"),
        pb.AnswerPart(reasoning="m"),
    )
    assert parts().read(said) == Told("ab", "hm", [ToolCall(0, "{}", "f", "id0"), ToolCall(1, "", "g", "id1")])


def test_a_call_has_its_id_where_it_begins_only():
    read = parts().read
    assert read(message(begins(0, "f"))).calls == [ToolCall(0, "", "f", "id0")]
    assert read(message(goes_on(0, "{}"), begins(1, "f"))).calls == [ToolCall(0, "{}"), ToolCall(1, "", "f", "id1")]


def test_a_choice_that_called_something_ends_for_that_unless_it_was_cut():
    read = parts()
    read.read(message(begins(0, "f"), choice=1))
    assert [read.finish(choice, "stop") for choice in (0, 1)] == ["stop", "tool_calls"]
    assert read.finish(1, "length") == "length"
    assert read.finish(1, "stop", at_stop_string=True) == "stop"
    assert read.finish(1, None) is None


def test_parts_of_calls_are_merged_in_their_order():
    told = [ToolCall(0, "", "f", "a"), ToolCall(0, "{"), ToolCall(1, "{}", "g", "b"), ToolCall(0, "}")]
    assert merged(told) == [ToolCall(0, "{}", "f", "a"), ToolCall(1, "{}", "g", "b")]


def test_ids_are_nine_letters_or_digits_and_differ():
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 9 and one.isalnum() and one.isascii() for one in ids)


class Messages:
    """A source of messages."""

    said: Mapping[str, str] = {}

    def __init__(self, *messages):
        self._messages = [one.SerializeToString() for one in messages]

    async def read(self):
        return self._messages.pop(0) if self._messages else None


SAID = (
    message(pb.AnswerPart(reasoning="h")),
    message(),  # a part of a marker
    message(begins(0, "f")),
    message(goes_on(0, '{"a":')),
    message(goes_on(0, "1}"), begins(1, "g"), choice=0),
    message(goes_on(1, "{}"), finish_reason=pb.FINISH_REASON_STOP),
)


async def test_a_stop_string_that_cut_a_call_is_why_the_choice_ended():
    cut = message(goes_on(0, '"}'), finish_reason=pb.FINISH_REASON_STOP, matched_stop="x")
    answer = Answer(Wish((pb.GenerateRequest(),), is_stream=False), texts=None, parts=parts())
    source = Messages(message(begins(0, "f"), goes_on(0, '{"a":"')), cut)
    whole = (await in_one_piece(source, answer, Choices(Head(CHAT, "id", "tiny", 0))))["choices"][0]
    assert whole["finish_reason"] == "stop"
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == '{"a":""}'


async def test_each_message_of_a_call_is_an_event_and_all_of_them_make_the_whole():
    def answer():
        return Answer(Wish((pb.GenerateRequest(),), is_stream=True), texts=None, parts=parts())

    form = Choices(Head(CHAT, "id", "tiny", 0))
    sent = [e async for e in as_events(Messages(*SAID), answer(), form, None, waiting_s=9)]
    choices = [json.loads(e.removeprefix(b"data: "))["choices"][0] for e in sent if e.startswith(b"data: {")]
    assert [choice["finish_reason"] for choice in choices] == [None] * 5 + ["tool_calls"]
    streamed = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert [(call["index"], call["function"]["arguments"]) for call in streamed] == [
        *((0, ""), (0, '{"a":'), (0, "1}"), (1, ""), (1, "{}"))
    ]
    whole = (await in_one_piece(Messages(*SAID), answer(), form))["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    assert [(call["id"], call["function"]) for call in whole["message"]["tool_calls"]] == [
        ("id0", {"name": "f", "arguments": '{"a":1}'}),
        ("id1", {"name": "g", "arguments": "{}"}),
    ]


def delta(**fields):
    return CHAT.part(Piece(0, **fields))["delta"]


def test_a_delta_says_what_is_new_and_nothing_else():
    assert delta(text="a") == {"content": "a"}
    assert delta() == {"content": ""}
    assert delta(finish="tool_calls") == {}
    assert delta(reasoning="h") == {"reasoning_content": "h", "reasoning": "h"}
    begun = {"index": 1, "id": "x", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert delta(calls=[ToolCall(1, "", "f", "x")]) == {"tool_calls": [begun]}
    more = {"index": 1, "function": {"arguments": "{}"}}
    assert delta(text="a", calls=[ToolCall(1, "{}")]) == {"content": "a", "tool_calls": [more]}


def test_a_message_of_calls_alone_has_no_content():
    said = CHAT.whole(Piece(0, finish="tool_calls", calls=[ToolCall(0, "{}", "f", "x")]))["message"]
    assert (said["content"], said["tool_calls"][0]["id"]) == (None, "x")
    assert "index" not in said["tool_calls"][0]
    assert CHAT.whole(Piece(0, finish="stop"))["message"] == {"role": "assistant", "content": "", "refusal": None}
