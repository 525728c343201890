"""What bodies of /v1/responses may say, as JSON Schema. Names and meanings are OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_api.limits import MAX_CHAT_MESSAGES, MAX_LOGPROBS, MAX_TOOLS
from dormouse_gateway.openai.pictures import CHAT_SOUND, RESPONSES_IMAGE
from dormouse_gateway.openai.schema_kit import (
    BOOLEAN,
    FREE,
    MAX_NAME_CHARS,
    Json,
    array,
    fields,
    integer,
    kind,
    one_of,
    only,
    or_null,
    request,
    text,
    unused,
)
from dormouse_gateway.openai.schemas import (
    EFFORT,
    FUNCTION,
    HARMLESS,
    MAX_TOKENS,
    MODEL,
    NOT_PADDED,
    PARALLEL,
    PRIORITY,
    TEMPERATURE,
    TOP_P,
)
from dormouse_gateway.openai.structured import TEXT_FORMAT

LOGPROBS = "message.output_text.logprobs"  # of what is included

_NAME = text(1, MAX_NAME_CHARS)
_KEPT: Mapping[str, Json] = {  # what our own answers say besides, and come back with
    "id": or_null(text(0, MAX_NAME_CHARS)),
    "status": or_null({"enum": ["in_progress", "completed", "incomplete"]}),
}
_PART = one_of(
    kind("input_text", {"text": text(), "prompt_cache_breakpoint": FREE}, "text"),
    kind(
        "output_text",
        {"text": text(), "annotations": array(FREE, 0), "logprobs": or_null(array(FREE, MAX_TOKENS))},
        "text",
    ),
    kind("reasoning_text", {"text": text()}, "text"),
    kind("summary_text", {"text": text()}, "text"),
)
_PARTS = array(_PART, MAX_CHAT_MESSAGES)
_SHOWN = array(one_of(*_PART["anyOf"], RESPONSES_IMAGE), MAX_CHAT_MESSAGES)
_SAID = array(one_of(*_PART["anyOf"], RESPONSES_IMAGE, CHAT_SOUND), MAX_CHAT_MESSAGES)
_TURN = fields(
    {
        "type": {"enum": ["message"]},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": one_of(text(), _SAID),
        "phase": or_null(text()),
        **_KEPT,
    },
    "role",
    "content",
)
_CALL = kind(
    "function_call", {"call_id": _NAME, "name": _NAME, "arguments": text(), **_KEPT}, "call_id", "name", "arguments"
)
_RESULT = kind(
    "function_call_output", {"call_id": _NAME, "output": one_of(text(), _SHOWN), **_KEPT}, "call_id", "output"
)
_THOUGHT = kind(
    "reasoning",
    {"summary": _PARTS, "content": or_null(_PARTS), "encrypted_content": or_null(text()), **_KEPT},
    "summary",
)
_FUNCTION = kind("function", {name: FUNCTION[name] for name in FUNCTION}, "name")
_NAMED = kind("function", {"name": _NAME}, "name")
_ALLOWED = kind(
    "allowed_tools",
    {"mode": {"enum": ["auto", "required"]}, "tools": array(_NAMED, MAX_TOOLS, least=1)},
    "mode",
    "tools",
)
_THINKS = fields(
    {
        "effort": or_null(EFFORT),
        **dict.fromkeys(("summary", "generate_summary"), or_null({"enum": ["auto", "concise", "detailed"]})),
    }
) | {"description": "effort: the template's variable reasoning_effort. Thoughts are told whole, whatever summary says."}

RESPONSES_REQUEST = request(
    {
        "model": MODEL,
        "input": one_of(
            text(),
            array(one_of(_TURN, _CALL, _RESULT, _THOUGHT), MAX_CHAT_MESSAGES, least=1),
            description="Text, or the whole conversation: messages, function calls with their outputs, thoughts.",
        ),
    },
    {
        **HARMLESS,
        "client_metadata": unused(FREE, "nothing is stored."),
        "instructions": text() | {"description": "The first turn."},
        "stream": BOOLEAN | {"description": "OpenAI's events."},
        "stream_options": fields({"include_obfuscation": NOT_PADDED}) | {"description": "Nothing to choose."},
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "max_output_tokens": integer(1, MAX_TOKENS) | {"description": "Default: as many as the model has room for."},
        "top_logprobs": integer(0, MAX_LOGPROBS) | {"description": f"Only counts with {LOGPROBS} in include."},
        "include": array({"enum": [LOGPROBS, "reasoning.encrypted_content"]}, 2)
        | {"description": "Log-probabilities. Thoughts are never encrypted."},
        "text": fields(
            {"format": or_null(TEXT_FORMAT), "verbosity": or_null(only("medium", "How much a model says is up to it."))}
        )
        | {"description": "format: text, json_object, or json_schema, which the answer is forced to fit."},
        "reasoning": _THINKS,
        "tools": array(_FUNCTION, MAX_TOOLS) | {"description": "Functions. The gateway has no tools of its own."},
        "tool_choice": one_of(
            {"enum": ["auto", "none", "required"]},
            _NAMED,
            _ALLOWED,
            description="As in a chat.",
        ),
        "parallel_tool_calls": PARALLEL,
        "priority": PRIORITY,
        "truncation": only("disabled", "A conversation is used whole, or refused."),
        "background": only(False, "Nothing runs in the background."),  # noqa: FBT003  # a value of the API
    },
)
