"""What bodies of /v1/decisions and /v1/systemone may say, as JSON Schema: OpenAI's names, and vLLM's."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_api.limits import (
    MAX_CHAT_MESSAGES,
    MAX_DECIDE_CHOICES,
    MAX_DECIDE_LEVELS,
    MAX_DECIDE_QUESTIONS,
)
from dormouse_gateway.openai.schema_kit import (
    BOOLEAN,
    FREE,
    MAX_NAME_CHARS,
    Json,
    array,
    fields,
    kind,
    number,
    one_of,
    only,
    or_null,
    request,
    text,
    unused,
)
from dormouse_gateway.openai.schemas import HARMLESS, MODEL, PRIORITY, TEMPLATE_KWARGS

_NAME = text(1, MAX_NAME_CHARS)
_BREAK = {"prompt_cache_breakpoint": or_null(unused(FREE, HARMLESS["prompt_cache_options"]["description"]))}
_DATA = one_of(FREE, array(FREE, MAX_CHAT_MESSAGES), description="An object, or objects; the model reads them as JSON.")
_TEXT_PART = kind("input_text", {"text": text(), **_BREAK}, "text")
_JSON_PART = kind("input_json", {"data": _DATA}, "data")
_SAID = one_of(text(), array(one_of(_TEXT_PART, _JSON_PART), MAX_CHAT_MESSAGES))
_PARTS = array(
    one_of(
        _TEXT_PART,
        _JSON_PART,
        kind("output_text", {"text": text()}, "text"),
        kind("refusal", {"refusal": text()}, "refusal"),
    ),
    MAX_CHAT_MESSAGES,
)
_TURN = fields(
    {
        "type": {"enum": ["message"]},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": one_of(text(), _PARTS),
        "phase": or_null(text()),
    },
    "role",
    "content",
)
_KEPT: Mapping[str, Json] = {
    "id": or_null(text(0, MAX_NAME_CHARS)),
    "status": or_null({"enum": ["in_progress", "completed", "incomplete"]}),
}
_CALLED: Mapping[str, Json] = {"call_id": _NAME, "name": _NAME, "namespace": or_null(text(0, MAX_NAME_CHARS)), **_KEPT}
_TOLD: Mapping[str, Json] = {"call_id": _NAME, "output": _SAID, **_KEPT}
_ITEMS = one_of(
    _TURN,
    kind("function_call", {"arguments": text(), **_CALLED}, "call_id", "name", "arguments"),
    kind("function_call_output", _TOLD, "call_id", "output"),
    kind("custom_tool_call", {"input": text(), **_CALLED}, "call_id", "name", "input"),
    kind("custom_tool_call_output", _TOLD, "call_id", "output"),
)
_INSTRUCTIONS = _SAID | {"description": "What is asked."}
_OPTION = fields({"value": one_of(text(1), BOOLEAN), "description": text()}, "value")
_LEVEL = fields({"label": text(1), "description": text()}, "label")
_ASKED: Mapping[str, Json] = {"instructions": _INSTRUCTIONS, "name": text(0, MAX_NAME_CHARS)}
_QUESTION = one_of(
    kind("predicate", _ASKED, "instructions"),
    kind("choice", {"choices": array(_OPTION, MAX_DECIDE_CHOICES, least=2), **_ASKED}, "instructions", "choices"),
    kind("score", {"levels": array(_LEVEL, MAX_DECIDE_LEVELS, least=2), **_ASKED}, "instructions", "levels"),
)
_OURS: Mapping[str, Json] = {
    "priority": PRIORITY,
    "chat_template_kwargs": TEMPLATE_KWARGS,
    "prompt_cache_key": text(0, MAX_NAME_CHARS)
    | {"description": "Cached beginnings are shared only between calls with the same one."},
}
DECISIONS_REQUEST = request(
    {
        "model": MODEL,
        "input": one_of(
            text(1),
            array(_ITEMS, MAX_CHAT_MESSAGES, least=1),
            description="What is asked about: text, or messages and calls with their outputs.",
        ),
        "questions": array(_QUESTION, MAX_DECIDE_QUESTIONS, least=1)
        | {"description": "predicate: is it true; choice: of values that are each there once; score: levels in order."},
    },
    {
        "prompt_cache_options": HARMLESS["prompt_cache_options"],
        "safety_identifier": HARMLESS["safety_identifier"],
        "min_label_mass": number(0, 1)
        | {"description": "A question whose labels are less likely together is refused. Default: 0."},
        **_OURS,
    },
)

_SIDES = or_null(fields(dict.fromkeys(("true", "false"), or_null(text()))))
_OPTIONS: Json = {
    "type": "object",
    "propertyNames": {"minLength": 1},
    "additionalProperties": or_null(text()),
    "minProperties": 2,
    "maxProperties": MAX_DECIDE_CHOICES,
}
_LEVELS = array(text(1), MAX_DECIDE_LEVELS, least=2)
_WORDS: Mapping[str, Json] = {"instructions": or_null(text())}
_SPEC = one_of(
    kind("noul", {**_WORDS, "criteria": _SIDES}),
    kind("choice", {**_WORDS, "criteria": _OPTIONS}, "criteria"),
    kind("score", {**_WORDS, "criteria": _LEVELS}, "criteria"),
)
SYSTEMONE_REQUEST = request(
    {
        "model": MODEL,
        "state": one_of(
            text(1), FREE, array({}, MAX_CHAT_MESSAGES), description="What the questions are about: text or JSON."
        ),
        "questions": {
            "type": "object",
            "additionalProperties": _SPEC,
            "minProperties": 1,
            "maxProperties": MAX_DECIDE_QUESTIONS,
            "description": "By ids of the caller's. Criteria of noul: what true and false mean; of choice: options with"
            " descriptions; of score: levels, the lowest first.",
        },
    },
    {
        "instructions": text() | {"description": "The system's turn."},
        "joint": only(False, "Questions are answered one by one."),  # noqa: FBT003  # a value of the API
        **_OURS,
    },
)

_NUMBER: Json = {"type": "number"}
_WHOLE: Json = {"type": "integer"}
_USED: Mapping[str, Json] = {
    "input_tokens": _WHOLE,
    "input_tokens_details": fields(dict.fromkeys(("cached_tokens", "cache_write_tokens"), _WHOLE)),
    "output_tokens": _WHOLE,
    "output_tokens_details": fields({"reasoning_tokens": _WHOLE}),
    "total_tokens": _WHOLE,
}
_ANSWER: Json = {"type": "object", "properties": {"type": text()}, "required": ["type"], "additionalProperties": True}
_DECIDED: Mapping[str, Json] = {
    "answers": array(_ANSWER, MAX_DECIDE_QUESTIONS),
    "model": text(),
    "usage": fields(_USED, *_USED),
}
DECISIONS_ANSWER = fields(_DECIDED, *_DECIDED)
_DIAGNOSED = fields({"label_mass": _NUMBER, "argmax_is_label": BOOLEAN}, "label_mass", "argmax_is_label")
_TOLD_BY_ID: Mapping[str, Json] = {
    "id": text(),
    "object": {"const": "structured_decision"},
    "created": _WHOLE,
    "model": text(),
    "answers": {"type": "object", "additionalProperties": _ANSWER},
    "usage": fields(dict.fromkeys(("input_tokens", "output_tokens"), _WHOLE), "input_tokens", "output_tokens"),
    "diagnostics": {"type": "object", "additionalProperties": _DIAGNOSED},
    "joint": {"type": "null"},
}
SYSTEMONE_ANSWER = fields(_TOLD_BY_ID, *_TOLD_BY_ID)
