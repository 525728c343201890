"""What bodies of /v1/messages may say, as JSON Schema. Names and meanings are Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_api.limits import MAX_CHAT_MESSAGES, MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS, MAX_TOOLS
from dormouse_gateway.openai.pictures import messages_image
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
    or_null,
    request,
    text,
    unused,
)
from dormouse_gateway.openai.schemas import MAX_TOKENS, MODEL, STOP_STRING, TEMPERATURE, TOP_P

_CACHE_CONTROL = unused(FREE, "equal beginnings are cached without being asked.")
_CACHED: Mapping[str, Json] = {"cache_control": or_null(_CACHE_CONTROL)}
_TEXT = kind("text", {"text": text(), **_CACHED, "citations": {"type": "null"}}, "text")
_TEXTS = array(_TEXT, MAX_CHAT_MESSAGES)
_IMAGE = messages_image(**_CACHED)
_TOOL_USE = kind(
    "tool_use",
    {"id": text(1, MAX_NAME_CHARS), "name": text(1, MAX_NAME_CHARS), "input": FREE, "caller": FREE, **_CACHED},
    "id",
    "name",
    "input",
)
_TOOL_RESULT = kind(
    "tool_result",
    {
        "tool_use_id": text(1, MAX_NAME_CHARS),
        "content": or_null(one_of(text(), array(one_of(_TEXT, _IMAGE), MAX_CHAT_MESSAGES))),
        "is_error": or_null(BOOLEAN),
        **_CACHED,
    },
    "tool_use_id",
)
_THINKING = kind("thinking", {"thinking": text(), "signature": text()}, "thinking")
_REDACTED = kind("redacted_thinking", {"data": text()}, "data")
_BLOCKS = array(one_of(_TEXT, _IMAGE, _TOOL_USE, _TOOL_RESULT, _THINKING, _REDACTED), MAX_TOOLS + MAX_CHAT_MESSAGES)
_TURN = fields(
    {"role": {"enum": ["user", "assistant", "system"]}, "content": one_of(text(), _BLOCKS)}, "role", "content"
)
_DISPLAY = or_null({"enum": ["summarized", "omitted"]})
_THINKS = one_of(
    kind("disabled", {}),
    kind("enabled", {"budget_tokens": integer(0, MAX_TOKENS), "display": _DISPLAY}),
    kind("adaptive", {"budget_tokens": integer(0, MAX_TOKENS), "display": _DISPLAY}),
    description="disabled or not: the template's variable enable_thinking. Thoughts are told whole; no budget is kept.",
)
_PARALLEL: Mapping[str, Json] = {"disable_parallel_tool_use": or_null(BOOLEAN)}
_TOOLS = array(
    fields(
        {
            "type": or_null({"enum": ["custom"]}),
            "name": text(1, MAX_NAME_CHARS),
            "description": or_null(text()),
            "input_schema": FREE,
            "strict": or_null(BOOLEAN),
            "eager_input_streaming": or_null(BOOLEAN),
            **_CACHED,
        },
        "name",
        "input_schema",
    ),
    MAX_TOOLS,
)
_CHOICE = one_of(
    kind("auto", _PARALLEL),
    kind("any", _PARALLEL),
    kind("tool", {"name": text(1, MAX_NAME_CHARS), **_PARALLEL}, "name"),
    kind("none", {}),
    description="any, tool: the answer is bound to calls whose arguments fit. none: the template gets no tools.",
)
_FORMAT = kind("json_schema", {"schema": FREE}, "schema")
_OUTPUT = fields({"effort": or_null(text(1, 32)), "format": or_null(_FORMAT)}) | {
    "description": "effort: the template's variable reasoning_effort. format: a schema that the answer has to fit."
}

_KEEPS_ALL = kind("clear_thinking_20251015", {"keep": {"enum": ["all"]}}, "keep")
_REQUIRED: Mapping[str, Json] = {
    "model": MODEL,
    "messages": array(_TURN, MAX_CHAT_MESSAGES, least=1)
    | {
        "description": "Text, images, and calls of tools with their results. A last turn of the assistant is continued."
    },
}
_PROMPT: Mapping[str, Json] = {
    "system": one_of(text(), _TEXTS, description="The first turn. What clients send there for billing is left out."),
    "thinking": _THINKS,
    "output_config": _OUTPUT,
    "tools": _TOOLS | {"description": "Tools of the client. Rendered by the model's template."},
    "tool_choice": _CHOICE,
    "cache_control": _CACHE_CONTROL,
    "context_management": unused(
        fields({"edits": array(_KEEPS_ALL, MAX_TOOLS)}), "what keeps all thoughts is taken, other edits are refused."
    ),
    "betas": unused(array(text(0, MAX_NAME_CHARS), MAX_TOOLS), "names of features switch nothing on."),
    "speed": unused({"enum": ["standard"]}, "there is one."),
    "user_profile_id": unused(text(0, MAX_NAME_CHARS), "who asks is told by the API key."),
    "workspace_id": unused(text(0, MAX_NAME_CHARS), "who asks is told by the API key."),
}
MESSAGES_REQUEST = request(
    {**_REQUIRED, "max_tokens": integer(1, MAX_TOKENS) | {"description": "At most what the model has room for."}},
    {
        **_PROMPT,
        "stream": BOOLEAN | {"description": "Anthropic's events. The prompt's tokens are told at the end."},
        "stop_sequences": array(STOP_STRING, MAX_STOP_STRINGS)
        | {"description": f"At most {MAX_STOP_STRINGS} strings of {MAX_STOP_STRING_BYTES} bytes."},
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "top_k": integer(0, MAX_TOKENS) | {"description": "0 = all."},
        "metadata": unused(fields({"user_id": or_null(text())}), "who asks is told by the API key."),
        "service_tier": unused({"enum": ["auto", "standard_only"]}, "there is one."),
    },
)
COUNT_REQUEST = request(_REQUIRED, _PROMPT)
