"""Bytes that protobuf would take for something else, drop or call broken are refused by field and limit."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.requests.parsing import MAX_FIELDS_WALKED, Reader, Unreadable, readable

GENERATE = Reader(pb.GenerateRequest)


def varint(value):
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def number(field, value):
    return varint(field << 3) + varint(value)


def chunk(field, raw):
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def fixed32(field):
    return varint(field << 3 | 5) + struct.pack("<f", 1.0)


TEXT, TOKEN_IDS, CHAT, PARAMS, RESUME, PRIORITY = 3, 4, 5, 6, 7, 8
BROKEN = {
    "model as a number": (number(1, 5), "model", "varint", "length-delimited"),
    "request id as a number": (number(2, 5), "request_id", "varint", "length-delimited"),
    "text with a surrogate": (chunk(TEXT, b"a\xed\xa0\x80"), "text", "byte 1", "surrogates"),
    "text in latin-1": (chunk(TEXT, b"\xe9"), "text", "byte 0", "UTF-8"),
    "text as a number": (number(TEXT, 1), "text", "varint", "length-delimited"),
    "token ids as a number": (number(TOKEN_IDS, 1), "token_ids", "varint", "length-delimited"),
    "token ids of floats": (chunk(TOKEN_IDS, fixed32(1)), "token_ids.ids", "32 bit", "varint"),
    "a token id above 32 bits": (chunk(TOKEN_IDS, number(1, 2**32)), "token_ids.ids", "above", "4294967295"),
    "packed ids above 32 bits": (
        chunk(TOKEN_IDS, chunk(1, varint(7) + varint(2**35) + varint(7))),
        *("token_ids.ids", "above", "4294967295"),
    ),
    "temperature as a number": (chunk(PARAMS, number(1, 1)), "sampling_params.temperature", "varint", "32 bit"),
    "seed as text": (chunk(PARAMS, chunk(5, b"x")), "sampling_params.seed", "length-delimited", "varint"),
    "max_tokens above 32 bits": (chunk(PARAMS, number(6, 2**32 + 5)), "sampling_params.max_tokens", "above", "32 bits"),
    "a stop string with a surrogate": (
        chunk(PARAMS, chunk(8, b"\xed\xbf\xbf")),
        "sampling_params.stop",
        "byte 0",
        "UTF-8",
    ),
    "a bias without a number": (
        chunk(PARAMS, chunk(17, number(1, 2) + number(2, 3))),
        *("sampling_params.logit_bias.value", "varint", "32 bit"),
    ),
    "parameters as a float": (fixed32(PARAMS), "sampling_params", "32 bit", "length-delimited"),
    "priority above 32 bits": (number(PRIORITY, 2**31), "priority", "2147483648", "32 bits"),
    "a chat's role in latin-1": (chunk(CHAT, chunk(1, chunk(1, b"\xff"))), "chat.messages.role", "byte 0", "UTF-8"),
    "cut off in a field": (chunk(TEXT, b"hello")[:-1], "message", "cut off", "whole"),
    "cut off in a number": (number(PRIORITY, 300)[:-1], "message", "cut off", "whole"),
    "parameters cut off": (chunk(PARAMS, fixed32(1)[:-1]), "sampling_params", "cut off", "whole"),
    "a group": (varint(9 << 3 | 3), "message", "wire type 3", "protobuf"),
    "field number 0": (b"\x00\x01", "message", "broken", "dormouse.v1.GenerateRequest"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_can_not_be_read_names_field_value_and_limit(case):
    raw, *named = BROKEN[case]
    with pytest.raises(CallError) as caught:
        readable(GENERATE(raw))
    assert [word for word in named if word not in caught.value.message] == [], caught.value.message


def nested(levels):
    """Return a Struct of so many levels: {"": {"": ...}}."""
    raw = b""
    for _ in range(levels):
        raw = chunk(1, chunk(2, chunk(5, raw)))
    return raw


def test_json_may_be_nested_and_what_is_nested_too_deep_is_named():
    fits = chunk(CHAT, chunk(2, nested(30)))
    assert readable(GENERATE(fits)) == pb.GenerateRequest.FromString(fits)
    with pytest.raises(CallError, match=r"chat\.tools.*nested too deep.*100"):
        readable(GENERATE(chunk(CHAT, chunk(2, nested(40)))))


def test_every_field_set_within_its_limits_is_read_as_protobuf_reads_it():
    params = pb.SamplingParams(
        temperature=1, seed=2**64 - 1, max_tokens=2**32 - 1, stop=["\0", "é"], logit_bias={1: -1.5}, ignore_eos=True
    )
    request = pb.GenerateRequest(
        model="m", token_ids=pb.TokenIds(ids=[0, 2**32 - 1]), sampling_params=params, priority=-1
    )
    assert readable(GENERATE(request.SerializeToString())) == request


def test_fields_of_a_newer_client_pass():
    raw = pb.GenerateRequest(text="hi").SerializeToString() + chunk(99, b"\xff") + number(98, 2**40)
    assert readable(GENERATE(raw)).text == "hi"


def test_a_message_of_very_many_fields_is_not_walked_to_its_end():
    raw = number(PRIORITY, 1) * MAX_FIELDS_WALKED + chunk(TEXT, b"\xff")
    assert GENERATE(raw) == Unreadable("message", "broken", "a dormouse.v1.GenerateRequest")


@given(raw=st.binary(max_size=60))
def test_no_bytes_raise_anything(raw):
    found = GENERATE(raw)
    assert isinstance(found, pb.GenerateRequest | Unreadable)
