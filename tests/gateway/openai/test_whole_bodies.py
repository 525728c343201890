"""All that a body says reaches the worker, and nothing else: whole requests, compared whole."""

from __future__ import annotations

from dataclasses import fields

import pytest
from google.protobuf.json_format import MessageToDict

from dormouse_api.limits import MAX_REQUEST_ID_CHARS
from dormouse_gateway.openai.checking import check
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.mapping import to_chat, to_completion
from dormouse_gateway.openai.messages.mapping import to_message
from dormouse_gateway.openai.messages.schemas import MESSAGES_REQUEST
from dormouse_gateway.openai.responses.mapping import to_response
from dormouse_gateway.openai.responses.schemas import RESPONSES_REQUEST
from dormouse_gateway.openai.schemas import CHAT_REQUEST, COMPLETION_REQUEST
from tests.gateway.openai import whole_bodies

DOORS = {
    "chat": (to_chat, CHAT_REQUEST, whole_bodies.CHAT),
    "completion": (to_completion, COMPLETION_REQUEST, whole_bodies.COMPLETION),
    "message": (to_message, MESSAGES_REQUEST, whole_bodies.MESSAGE),
    "response": (to_response, RESPONSES_REQUEST, whole_bodies.RESPONSE),
}
HI = {"role": "user", "content": "hi"}
LEAST = {
    "chat": {"model": "tiny", "messages": [HI]},
    "completion": {"model": "tiny", "prompt": "hi"},
    "message": {"model": "tiny", "max_tokens": 9, "messages": [HI]},
    "response": {"model": "tiny", "input": "hi"},
}
CALL = {"type": "function", "id": "c1", "function": {"name": "look", "arguments": {"b": "out", "a": 1}}}
CALL_KEYS = ["id", "type", "function", "name", "arguments", "b", "a"]
LOOK = {"name": "look", "description": "Looks.", "parameters": whole_bodies.SCHEMA}
LOOK_KEYS = ["type", "function", "name", "description", "parameters", "type", "properties", "b", "a", "type"]
STRICT_KEYS = [*LOOK_KEYS[:5], "strict", *LOOK_KEYS[5:]]
FUNCTION = {"type": "function", "function": LOOK}
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.75,
    "top_k": 11,
    "min_p": 0.125,
    "seed": "7",
    "min_tokens": 3,
    "stop_token_ids": [4],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "logprobs": 2,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.25,
    "frequency_penalty": -0.5,
    "logit_bias": {"12": -1.5},
    "allowed_token_ids": [5, 6],
    "bad_words": ["bad"],
    "logprob_token_ids": [8],
}
CHAT = {
    "model": "tiny",
    "request_id": "r",
    "priority": 3,
    "prediction": "It is dark.",
    "answer_parsing": {"tool_calls": True, "reasoning": True, "function": "look", "single_call": True},
    "sampling_params": SAMPLING | {"max_tokens": 10, "n": 2, "stop": ["end"]},
    "chat": {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "a\nb", "name": "me"},
            {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "Hm.", "key_order": CALL_KEYS},
            {"role": "tool", "content": "dark", "tool_call_id": "c1"},
            {"role": "assistant", "content": "It is", "reasoning_content": "Well."},
        ],
        "tools": [FUNCTION, {"type": "function", "function": {"name": "wake"}}],
        "template_args": {"enable_thinking": False, "reasoning_effort": "low"},
        "add_generation_prompt": False,
        "continue_final_message": True,
        "key_order": [*LOOK_KEYS, "type", "function", "name"],
    },
}
COMPLETION = {
    "model": "tiny",
    "request_id": "r",
    "text": "Once",
    "priority": 3,
    "stream_interval": 64,
    "sampling_params": SAMPLING
    | {"max_tokens": 9, "n": 1, "stop": ["end", "over"], "prompt_logprobs": 2}
    | {"structured_outputs": {"json_object": True}},
}
CALLED = {
    "role": "assistant",
    "content": "I look.",
    "reasoning_content": "Hm.",
    "tool_calls": [CALL],
    "key_order": CALL_KEYS,
}
FORCED = {"tool_calls": True, "reasoning": True, "any_function": True, "single_call": True}
MESSAGE = {
    "model": "tiny",
    "request_id": "r",
    "sampling_params": {"temperature": 0.5, "top_p": 0.75, "top_k": 11, "max_tokens": 9, "stop": ["end"]},
    "answer_parsing": FORCED,
    "chat": {
        "messages": [
            {"role": "system", "content": "Be short.\nPlease."},
            {"role": "user", "content": "a\nb"},
            CALLED,
            {"role": "tool", "content": "Error: dark", "tool_call_id": "c1"},
            {"role": "user", "content": "And?"},
        ],
        "tools": [{"type": "function", "function": LOOK | {"strict": True}}],
        "template_args": {"enable_thinking": False, "reasoning_effort": "low"},
        "key_order": STRICT_KEYS,
    },
}
RESPONSE = {
    "model": "tiny",
    "request_id": "r",
    "sampling_params": {"temperature": 0.5, "top_p": 0.75, "max_tokens": 9, "logprobs": 2},
    "answer_parsing": FORCED,
    "chat": {
        "messages": [
            {"role": "system", "content": "Be short.\n\nPlease."},
            {"role": "user", "content": "a"},
            CALLED,
            {"role": "tool", "content": "dark", "tool_call_id": "c1"},
            {"role": "assistant", "content": "It is dark."},
            {"role": "assistant", "content": "Very."},
        ],
        "tools": [FUNCTION],
        "template_args": {"reasoning_effort": "low"},
        "key_order": LOOK_KEYS,
    },
}
WHOLE = {
    "chat": ([CHAT], {"is_stream", "with_usage", "with_logprobs", "with_token_ids"}),
    "completion": (
        [COMPLETION, COMPLETION | {"request_id": "r-1", "text": "Twice"}],
        {"with_logprobs", "with_prompt_logprobs", "echo"},
    ),
    "message": ([MESSAGE], {"is_stream"}),
    "response": ([RESPONSE], {"is_stream", "with_logprobs"}),
}


def wish_of(door, body, request_id="r"):
    make, schema, _ = DOORS[door]
    check(body, schema)
    return make(body, request_id)


def told(wish):
    """Return a wish's requests, and its flags that are set."""
    requests = [MessageToDict(request, preserving_proto_field_name=True) for request in wish.prompts]
    flags = {field.name: getattr(wish, field.name) for field in fields(wish) if field.name != "prompts"}
    assert all(isinstance(flag, bool) for flag in flags.values())
    return requests, {name for name, flag in flags.items() if flag}


@pytest.mark.parametrize("door", DOORS)
def test_all_that_a_body_says_is_asked_for(door):
    assert told(wish_of(door, DOORS[door][2])) == WHOLE[door]


@pytest.mark.parametrize("door", DOORS)
def test_a_body_that_says_nothing_more_asks_for_nothing_more(door):
    sampling = {"completion": {"max_tokens": 16}, "message": {"max_tokens": 9}}.get(door, {})
    request = {"model": "tiny", "request_id": "r", "sampling_params": sampling, "stream_interval": 64}
    conversation = {"chat": {"messages": [HI]}, "answer_parsing": {"reasoning": True}}
    asked = {"text": "hi"} if door == "completion" else conversation
    assert told(wish_of(door, LEAST[door])) == ([request | asked], set())


@pytest.mark.parametrize(
    ("door", "more", "params", "flags"),
    [
        ("chat", {"logprobs": True}, {"logprobs": 0}, {"with_logprobs"}),
        ("chat", {"logprobs": False, "top_logprobs": 2}, {}, set()),
        ("chat", {"top_k": -1}, {"top_k": 0}, set()),
        ("chat", {"top_k": 0}, {"top_k": 0}, set()),
        ("chat", {"prompt_logprobs": 0}, {"prompt_logprobs": 0}, {"with_prompt_logprobs"}),
        ("chat", {"max_tokens": 5}, {"max_tokens": 5}, set()),
        ("chat", {"stream_options": {"include_usage": True}, "stream": True}, {}, {"is_stream", "with_usage"}),
        ("completion", {"echo": True, "max_tokens": 0}, {"max_tokens": 1}, {"echo", "without_answer"}),
        ("completion", {"echo": True, "max_tokens": 1}, {"max_tokens": 1}, {"echo"}),
        ("completion", {"echo": True, "n": 2}, {"max_tokens": 16, "n": 2}, {"echo"}),
        ("completion", {"logprobs": 0}, {"max_tokens": 16, "logprobs": 0}, {"with_logprobs"}),
        (
            "completion",
            {"echo": True, "logprobs": 1, "prompt_logprobs": 3},
            {"max_tokens": 16, "logprobs": 1, "prompt_logprobs": 3},
            {"echo", "with_logprobs", "with_prompt_logprobs"},
        ),
        ("response", {"include": ["message.output_text.logprobs"]}, {"logprobs": 0}, {"with_logprobs"}),
        ("response", {"top_logprobs": 2}, {}, set()),
    ],
)
def test_what_stands_for_another_thing(door, more, params, flags):
    [request], flagged = told(wish_of(door, LEAST[door] | more))
    assert (request["sampling_params"], flagged) == (params, flags)


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ([1.0, 2.0], [{"token_ids": {"ids": [1, 2]}}]),
        ([[1.0], [2.0]], [{"token_ids": {"ids": [1]}}, {"token_ids": {"ids": [2]}}]),
        (["a", "b"], [{"text": "a"}, {"text": "b"}]),
    ],
)
def test_each_prompt_is_a_request_of_its_own(prompt, asked):
    long = "r" * MAX_REQUEST_ID_CHARS
    requests, _ = told(wish_of("completion", LEAST["completion"] | {"prompt": prompt}, long))
    assert [{name: it for name, it in one.items() if name in {"text", "token_ids"}} for one in requests] == asked
    assert [one["request_id"] for one in requests] == [long, f"{long[:-4]}-1"][: len(asked)]


@pytest.mark.parametrize(
    ("door", "more", "words"),
    [
        ("chat", {"stream": True, "prompt_logprobs": 1}, "prompt_logprobs is set with stream; allowed: only without"),
        ("completion", {"stream": True, "echo": True}, "echo is true with stream; allowed: only without stream"),
        ("completion", {"echo": True, "n": 2, "logprobs": 0}, "echo is true with logprobs and n 2; allowed: with logp"),
        ("completion", {"max_tokens": 0}, "max_tokens is 0; allowed: at least 1, or 0 with echo"),
        (
            "completion",
            {"prompt": ["a"] * 17, "n": 16},
            "prompt is 17 prompts with n 16; allowed: 256 answers together",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(door, more, words):
    with pytest.raises(ApiError) as caught:
        wish_of(door, LEAST[door] | more)
    assert str(caught.value.message).startswith(words)


def test_as_many_answers_as_are_allowed_are_given():
    assert len(wish_of("completion", LEAST["completion"] | {"prompt": ["a"] * 16, "n": 16}).prompts) == 16
    assert len(wish_of("completion", LEAST["completion"] | {"prompt": ["a"] * 256}).prompts) == 256
