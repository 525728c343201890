"""What the bodies of requests may say: the one table, as JSON Schema. Served in the OpenAPI document as it is.

Names and meanings are OpenAI's; the fields of `_VLLM` are vLLM's. A field that is not here is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_api.limits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_BYTES,
    MAX_BAD_WORDS,
    MAX_CHAT_MESSAGES,
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_MESSAGE_BYTES,
    MAX_PENALTY,
    MAX_PRIORITY,
    MAX_REPETITION_PENALTY,
    MAX_STOP_STRING_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOOLS,
)
from dormouse_gateway.clients.requests import MAX_MODEL_CHARS

MAX_TOKENS = (1 << 31) - 1  # the model's length is the real limit, and the worker's to say
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, of /v1/completions only
_MAX_TOKEN_ID = (1 << 32) - 1
_MAX_NAME_CHARS = 256
_MAX_TEMPERATURE = 100  # beyond it all tokens are as good as equally likely

Json = dict[str, Any]


def _object(properties: Mapping[str, Json], *required: str, **more: Any) -> Json:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    } | more


def _array(items: Json, most: int, least: int = 0) -> Json:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _integer(least: int, most: int) -> Json:
    return {"type": "integer", "minimum": least, "maximum": most}


def _number(least: float, most: float) -> Json:
    return {"type": "number", "minimum": least, "maximum": most}


def _text(least: int = 0, most: int | None = None) -> Json:
    return {"type": "string", "minLength": least} | ({} if most is None else {"maxLength": most})


def _above_0(most: float) -> Json:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": most}


def _only(value: Any, why: str) -> Json:
    return {"enum": [value], "description": why}


def _or_null(schema: Json) -> Json:
    about = {"description": schema["description"]} if "description" in schema else {}
    return {"anyOf": [schema, {"type": "null"}]} | about


_BOOLEAN = {"type": "boolean"}
_TOKEN_ID = _integer(0, _MAX_TOKEN_ID)
_STOP = _text(1, MAX_STOP_STRING_BYTES)

_COMMON: Mapping[str, Json] = {
    "stream": _BOOLEAN | {"description": "Server-sent events, ended by [DONE]."},
    "stream_options": _object(
        {
            "include_usage": _BOOLEAN,
            "include_obfuscation": _only(False, "Answers are not padded."),  # noqa: FBT003  # a value of the API
        }
    ),
    "temperature": _number(0, _MAX_TEMPERATURE) | {"description": "0 = greedy. Default: the model's, else 1."},
    "top_p": _above_0(1),
    "presence_penalty": _number(-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": _number(-MAX_PENALTY, MAX_PENALTY),
    "seed": _integer(0, (1 << 64) - 1) | {"description": "The same seed and request give the same answer."},
    "n": _integer(1, MAX_CHOICES),
    "stop": {"anyOf": [_STOP, _array(_STOP, MAX_STOP_STRINGS)]},
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": _number(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS),
        "maxProperties": MAX_LOGIT_BIASES,
        "description": "By token id.",
    },
    "max_tokens": _integer(1, MAX_TOKENS),
}
_NOT_USED = {"description": "Taken, and not used for anything."}
_HARMLESS: Mapping[str, Json] = {  # what clients send by themselves, and what changes no answer
    "user": _text() | _NOT_USED,
    "safety_identifier": _text(0, _MAX_NAME_CHARS) | _NOT_USED,
    "prompt_cache_key": _text(0, _MAX_NAME_CHARS) | {"description": "Not used: equal beginnings are found without it."},
    "metadata": _NOT_USED
    | {
        "type": "object",
        "propertyNames": {"pattern": "^.{1,64}$"},
        "additionalProperties": _text(0, 512),
        "maxProperties": 16,
    },
    "store": _only(False, "Nothing is stored."),  # noqa: FBT003  # a value of the API
    "service_tier": {"enum": ["auto", "default"], "description": "There is one."},
}
_VLLM: Mapping[str, Json] = {
    "top_k": _integer(-1, MAX_TOKENS) | {"description": "0 and -1 = all."},
    "min_p": _number(0, 1),
    "repetition_penalty": _above_0(MAX_REPETITION_PENALTY),
    "min_tokens": _integer(0, MAX_TOKENS),
    "ignore_eos": _BOOLEAN,
    "stop_token_ids": _array(_TOKEN_ID, MAX_STOP_TOKEN_IDS),
    "include_stop_str_in_output": _BOOLEAN,
    "skip_special_tokens": _BOOLEAN,
    "bad_words": _array(_text(1, MAX_BAD_WORD_BYTES), MAX_BAD_WORDS),
    "allowed_token_ids": _array(_TOKEN_ID, MAX_ALLOWED_TOKEN_IDS),
    "priority": _integer(-MAX_PRIORITY, MAX_PRIORITY) | {"description": "Lower goes first."},
}
_MODEL = _text(1, MAX_MODEL_CHARS) | {"description": "A name of /v1/models, or namespace/name."}
_FREE = {"type": "object", "additionalProperties": True}

_TOOL_CALL = _object(
    {
        "id": _text(0, _MAX_NAME_CHARS),
        "type": _only("function", "There are no others."),
        "function": _object(
            {
                "name": _text(1, _MAX_NAME_CHARS),
                "arguments": _text() | {"description": "As text; a JSON object becomes one."},
            },
            "name",
            "arguments",
        ),
    },
    "function",
)
_PART = _object(
    {"type": _only("text", "Images, audio and files are not supported: models see text only."), "text": _text()},
    "type",
    "text",
)
_CONTENT = {
    "anyOf": [_text(), _array(_PART, MAX_CHAT_MESSAGES)],
    "description": "Text, or parts of it, which are joined by line ends.",
}
_SAID: Mapping[str, Json] = {
    "role": _text(1, 64) | {"description": "As the model's template knows it: system, user, assistant, tool, …"},
    "name": _or_null(_text(1, _MAX_NAME_CHARS)),
    "tool_call_id": _or_null(_text(0, _MAX_NAME_CHARS)),
    "refusal": {"type": "null"},
}
_CALLS = _array(_TOOL_CALL, MAX_TOOLS, least=1)
_TURN = _object({**_SAID, "content": _CONTENT, "tool_calls": _or_null(_CALLS)}, "role", "content")
_CALLING_TURN = _object({**_SAID, "content": _or_null(_CONTENT), "tool_calls": _CALLS}, "role", "tool_calls")
_MESSAGE = {"anyOf": [_TURN, _CALLING_TURN]}
_TOOL = _object(
    {
        "type": _only("function", "There are no others."),
        "function": _object(
            {
                "name": _text(1, _MAX_NAME_CHARS),
                "description": _text(),
                "parameters": _FREE | {"description": "A JSON Schema, for the template."},
                "strict": _only(False, "Arguments are not forced to fit."),  # noqa: FBT003  # a value of the API
            },
            "name",
        ),
    },
    "type",
    "function",
)


def _request(required: Mapping[str, Json], optional: Mapping[str, Json]) -> Json:
    """Return a body's schema; null is as good as leaving an optional field out."""
    return _object(dict(required) | {name: _or_null(schema) for name, schema in optional.items()}, *required)


CHAT_REQUEST = _request(
    {"model": _MODEL, "messages": _array(_MESSAGE, MAX_CHAT_MESSAGES, least=1)},
    {
        **_COMMON,
        **_HARMLESS,
        **_VLLM,
        "max_completion_tokens": _integer(1, MAX_TOKENS) | {"description": "Goes before max_tokens."},
        "logprobs": _BOOLEAN,
        "top_logprobs": _integer(0, MAX_LOGPROBS) | {"description": "Only counts with logprobs."},
        "tools": _array(_TOOL, MAX_TOOLS)
        | {"description": "Rendered by the model's template. Calls stand in the content, as the model wrote them."},
        "parallel_tool_calls": _only(True, "A model writes as many calls as it likes."),  # noqa: FBT003  # of the API
        "modalities": _array(_only("text", "Answers are text."), 1, least=1),
        "tool_choice": {"enum": ["auto", "none"], "description": "none: the template gets no tools."},
        "response_format": _object({"type": _only("text", "Answers are not forced into a form.")}, "type"),
        "chat_template_kwargs": _FREE | {"description": "Further variables of the template (enable_thinking, …)."},
    },
)
COMPLETION_REQUEST = _request(
    {
        "model": _MODEL,
        "prompt": {
            "anyOf": [_text(1), _array(_text(1), 1, least=1), _array(_TOKEN_ID, MAX_MESSAGE_BYTES, least=1)],
            "description": "One text, or its token ids.",
        },
    },
    {
        **_COMMON,
        **_HARMLESS,
        **_VLLM,
        "max_tokens": _integer(1, MAX_TOKENS) | {"description": f"Default {DEFAULT_COMPLETION_TOKENS}."},
        "logprobs": _integer(0, MAX_LOGPROBS) | {"description": "So many likeliest tokens besides the chosen one."},
        "echo": _BOOLEAN
        | {"description": "The prompt stands before the answer. Not with stream; with logprobs for one choice."},
        "best_of": _only(1, "Answers are not ranked."),
    },
)
