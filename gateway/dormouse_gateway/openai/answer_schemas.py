"""How answers of all doors look, as JSON Schema: what the OpenAPI document says of them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
LOGPROB = {"type": "number"}
NULL = {"type": "null"}


def an_object(**properties: Json) -> Json:
    """Return an object that has these fields and no others."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def with_optional(schema: Json, **optional: Json) -> Json:
    """Return the object, which may have these fields, too."""
    return schema | {"properties": schema["properties"] | optional}


def an_array(items: Json) -> Json:
    """Return a list of these."""
    return {"type": "array", "items": items}


def or_null(schema: Json) -> Json:
    """Return what may be null, too."""
    return {"anyOf": [schema, NULL]}


MODEL = with_optional(an_object(id=TEXT, object={"const": "model"}, created=NUMBER, owned_by=TEXT), parent=TEXT)
ERROR = an_object(error=an_object(message=TEXT, type=TEXT, param=or_null(TEXT), code=or_null(TEXT)))
USAGE = an_object(
    prompt_tokens=NUMBER,
    completion_tokens=NUMBER,
    total_tokens=NUMBER,
    prompt_tokens_details=with_optional(
        an_object(cached_tokens=NUMBER), image_tokens=NUMBER, video_tokens=NUMBER, audio_tokens=NUMBER
    ),
    completion_tokens_details=an_object(accepted_prediction_tokens=NUMBER, rejected_prediction_tokens=NUMBER),
)
FINISH = {"enum": ["stop", "length"]}
CALL = an_object(id=TEXT, type={"const": "function"}, function=an_object(name=TEXT, arguments=TEXT))
ENTRY = {"token": TEXT, "logprob": LOGPROB, "bytes": or_null(an_array(NUMBER))}
CHAT_LOGPROBS = an_object(content=an_array(an_object(**ENTRY, top_logprobs=an_array(an_object(**ENTRY)))), refusal=NULL)
LOGPROBS = an_object(
    tokens=an_array(TEXT),
    token_logprobs=an_array(or_null(LOGPROB)),
    top_logprobs=an_array(or_null({"type": "object", "additionalProperties": LOGPROB})),
    text_offset=an_array(NUMBER),
)


RANKED = an_object(logprob=LOGPROB, rank=or_null(NUMBER), decoded_token=TEXT)
PROMPT: Json = {  # where it is asked for
    "prompt_token_ids": an_array(NUMBER),
    "prompt_logprobs": an_array(or_null({"type": "object", "additionalProperties": RANKED})),
}


def an_answer(name: str, choice: Json, **optional: Json) -> Json:
    """Return an answer of chat or completions with these choices."""
    head = {"id": TEXT, "object": {"const": name}, "created": NUMBER, "model": TEXT}
    return with_optional(
        an_object(**head, choices=an_array(with_optional(choice, token_ids=an_array(NUMBER))), usage=USAGE), **optional
    )


CHAT_ANSWER = an_answer(
    "chat.completion",
    an_object(
        index=NUMBER,
        message=with_optional(
            an_object(role={"const": "assistant"}, content=or_null(TEXT), refusal=NULL),
            tool_calls=an_array(CALL),
            reasoning_content=TEXT,
            reasoning=TEXT,
        ),
        logprobs=or_null(CHAT_LOGPROBS),
        finish_reason={"enum": [*FINISH["enum"], "tool_calls"]},
    ),
    **PROMPT,
)
COMPLETION_ANSWER = an_answer(
    "text_completion",
    with_optional(an_object(index=NUMBER, text=TEXT, logprobs=or_null(LOGPROBS), finish_reason=FINISH), **PROMPT),
)
TOKENS = an_object(count=NUMBER, max_model_len=NUMBER, tokens=an_array(NUMBER), token_strs=or_null(an_array(TEXT)))
EMBEDDINGS = an_object(
    object={"const": "list"},
    data=an_array(
        an_object(
            object={"const": "embedding"},
            index=NUMBER,
            embedding={"anyOf": [an_array(NUMBER), TEXT]},
        )
    ),
    model=TEXT,
    usage=an_object(prompt_tokens=NUMBER, total_tokens=NUMBER),
)
BLOCK = {
    "anyOf": [
        an_object(type={"const": "text"}, text=TEXT),
        an_object(type={"const": "thinking"}, thinking=TEXT, signature=TEXT),
        an_object(type={"const": "tool_use"}, id=TEXT, name=TEXT, input={"type": "object"}),
    ]
}
MESSAGE = an_object(
    id=TEXT,
    type={"const": "message"},
    role={"const": "assistant"},
    model=TEXT,
    content=an_array(BLOCK),
    stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
    stop_sequence=or_null(TEXT),
    usage=an_object(
        input_tokens=NUMBER,
        cache_creation_input_tokens=NUMBER,
        cache_read_input_tokens=NUMBER,
        output_tokens=NUMBER,
    ),
)
ITEM = an_object(id=TEXT, type={"enum": ["message", "reasoning", "function_call"]}, status=TEXT)
RESPONSE = an_object(
    id=TEXT,
    object={"const": "response"},
    created_at=NUMBER,
    model=TEXT,
    status={"enum": ["completed", "incomplete"]},
    error=NULL,
    incomplete_details=or_null(an_object(reason={"const": "max_output_tokens"})),
    output=an_array(ITEM | {"additionalProperties": True}),
    usage=an_object(
        input_tokens=NUMBER,
        input_tokens_details=with_optional(
            an_object(cached_tokens=NUMBER, cache_write_tokens=NUMBER),
            image_tokens=NUMBER,
            video_tokens=NUMBER,
            audio_tokens=NUMBER,
        ),
        output_tokens=NUMBER,
        output_tokens_details=an_object(reasoning_tokens=NUMBER),
        total_tokens=NUMBER,
    ),
) | {"additionalProperties": True}  # what the request said comes back
ANTHROPICS_ERROR = an_object(type={"const": "error"}, error=an_object(type=TEXT, message=TEXT), request_id=TEXT)
