"""Members of Structs come in the order that is told beside them."""

import json

import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.key_order import key_order
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.text.chat_arguments import chat_arguments
from dormouse_worker.front.text.chat_checks import check_chat
from dormouse_worker.front.text.plain import KeyOrderError, in_order

LEAVES = st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=3)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=4)
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=2), VALUES, max_size=4), max_size=3)
ZEBRA = {"zebra": {"b": 1, "a": [{"y": 1, "x": 2}]}, "ape": None}


def struct(value):
    made = struct_pb2.Struct()
    made.update(value)
    return made


@given(OBJECTS)
def test_what_is_told_of_any_objects_brings_their_order_back(values):
    told = in_order(map(struct, values), [*key_order(values)])
    if any(values):
        assert json.dumps(told) == json.dumps(values)


def test_where_nothing_is_told_the_order_is_the_usual_one():
    assert list(in_order([struct(ZEBRA)], [])[0]) == ["ape", "zebra"]


WRONG = [
    ["zebra", "ape"],
    [*key_order([ZEBRA]), "more"],
    ["zebra", "zebra", "b", "a", "y", "x"],
    ["ape", "zebra", "a", "b", "x"],
    ["other"],
]


@pytest.mark.parametrize("names", WRONG, ids=str)
def test_names_that_are_not_those_of_the_members_are_refused_with_the_field(names):
    with pytest.raises(KeyOrderError):
        in_order([struct(ZEBRA)], names)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user")], tools=[struct(ZEBRA)], key_order=names)
    with pytest.raises(CallError, match=r"^chat\.key_order "):
        check_chat(chat)
    turn = pb.ChatMessage(role="assistant", tool_calls=[struct(ZEBRA)], key_order=names)
    with pytest.raises(CallError, match=r"^chat\.messages\[0\]\.key_order "):
        check_chat(pb.Chat(messages=[turn]))


def test_templates_get_tools_and_calls_in_their_own_order():
    turn = pb.ChatMessage(role="assistant", tool_calls=[struct(ZEBRA)], key_order=key_order([ZEBRA]))
    chat = pb.Chat(messages=[turn], tools=[struct(ZEBRA)], key_order=key_order([ZEBRA]))
    check_chat(chat)
    given_ = chat_arguments(chat)
    assert json.dumps(given_["tools"]) == json.dumps(given_["messages"][0]["tool_calls"]) == json.dumps([ZEBRA])
