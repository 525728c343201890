"""The OpenAPI document: what works, no more. The requests' schemas are those that are checked."""

from __future__ import annotations

from typing import Any

from dormouse_gateway.openai.classify import CLASSIFY_ANSWER, CLASSIFY_REQUEST
from dormouse_gateway.openai.decisions.schemas import (
    DECISIONS_ANSWER,
    DECISIONS_REQUEST,
    SYSTEMONE_ANSWER,
    SYSTEMONE_REQUEST,
)
from dormouse_gateway.openai.embeddings import EMBEDDINGS_REQUEST
from dormouse_gateway.openai.messages.schemas import COUNT_REQUEST, MESSAGES_REQUEST
from dormouse_gateway.openai.responses.schemas import RESPONSES_REQUEST
from dormouse_gateway.openai.schemas import CHAT_REQUEST, COMPLETION_REQUEST
from dormouse_gateway.openai.scores import RERANK_ANSWER, RERANK_REQUEST, SCORE_ANSWER, SCORE_REQUEST
from dormouse_gateway.openai.tokens import DETOKENIZE_REQUEST, TOKENIZE_REQUEST

Json = dict[str, Any]

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_LOGPROB = {"type": "number"}
_NULL = {"type": "null"}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _with(schema: Json, **optional: Json) -> Json:
    """Return the object, which may have these fields, too."""
    return schema | {"properties": schema["properties"] | optional}


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, _NULL]}


_MODEL = _with(_object(id=_TEXT, object={"const": "model"}, created=_NUMBER, owned_by=_TEXT), parent=_TEXT)
_ERROR = _object(error=_object(message=_TEXT, type=_TEXT, param=_or_null(_TEXT), code=_or_null(_TEXT)))
_USAGE = _object(
    prompt_tokens=_NUMBER,
    completion_tokens=_NUMBER,
    total_tokens=_NUMBER,
    prompt_tokens_details=_object(cached_tokens=_NUMBER),
    completion_tokens_details=_object(accepted_prediction_tokens=_NUMBER, rejected_prediction_tokens=_NUMBER),
)
_FINISH = {"enum": ["stop", "length"]}
_CALL = _object(id=_TEXT, type={"const": "function"}, function=_object(name=_TEXT, arguments=_TEXT))
_ENTRY = {"token": _TEXT, "logprob": _LOGPROB, "bytes": _or_null(_array(_NUMBER))}
_CHAT_LOGPROBS = _object(content=_array(_object(**_ENTRY, top_logprobs=_array(_object(**_ENTRY)))), refusal=_NULL)
_LOGPROBS = _object(
    tokens=_array(_TEXT),
    token_logprobs=_array(_or_null(_LOGPROB)),
    top_logprobs=_array(_or_null({"type": "object", "additionalProperties": _LOGPROB})),
    text_offset=_array(_NUMBER),
)


_RANKED = _object(logprob=_LOGPROB, rank=_or_null(_NUMBER), decoded_token=_TEXT)
_PROMPT: Json = {  # where it is asked for
    "prompt_token_ids": _array(_NUMBER),
    "prompt_logprobs": _array(_or_null({"type": "object", "additionalProperties": _RANKED})),
}


def _answer(name: str, choice: Json, **optional: Json) -> Json:
    head = {"id": _TEXT, "object": {"const": name}, "created": _NUMBER, "model": _TEXT}
    return _with(_object(**head, choices=_array(_with(choice, token_ids=_array(_NUMBER))), usage=_USAGE), **optional)


_CHAT_ANSWER = _answer(
    "chat.completion",
    _object(
        index=_NUMBER,
        message=_with(
            _object(role={"const": "assistant"}, content=_or_null(_TEXT), refusal=_NULL),
            tool_calls=_array(_CALL),
            reasoning_content=_TEXT,
            reasoning=_TEXT,
        ),
        logprobs=_or_null(_CHAT_LOGPROBS),
        finish_reason={"enum": [*_FINISH["enum"], "tool_calls"]},
    ),
    **_PROMPT,
)
_COMPLETION_ANSWER = _answer(
    "text_completion",
    _with(_object(index=_NUMBER, text=_TEXT, logprobs=_or_null(_LOGPROBS), finish_reason=_FINISH), **_PROMPT),
)
_TOKENS = _object(count=_NUMBER, max_model_len=_NUMBER, tokens=_array(_NUMBER), token_strs=_or_null(_array(_TEXT)))
_EMBEDDINGS = _object(
    object={"const": "list"},
    data=_array(
        _object(
            object={"const": "embedding"},
            index=_NUMBER,
            embedding={"anyOf": [_array(_NUMBER), _TEXT]},
        )
    ),
    model=_TEXT,
    usage=_object(prompt_tokens=_NUMBER, total_tokens=_NUMBER),
)
_BLOCK = {
    "anyOf": [
        _object(type={"const": "text"}, text=_TEXT),
        _object(type={"const": "thinking"}, thinking=_TEXT, signature=_TEXT),
        _object(type={"const": "tool_use"}, id=_TEXT, name=_TEXT, input={"type": "object"}),
    ]
}
_MESSAGE = _object(
    id=_TEXT,
    type={"const": "message"},
    role={"const": "assistant"},
    model=_TEXT,
    content=_array(_BLOCK),
    stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
    stop_sequence=_or_null(_TEXT),
    usage=_object(
        input_tokens=_NUMBER,
        cache_creation_input_tokens=_NUMBER,
        cache_read_input_tokens=_NUMBER,
        output_tokens=_NUMBER,
    ),
)
_ITEM = _object(id=_TEXT, type={"enum": ["message", "reasoning", "function_call"]}, status=_TEXT)
_RESPONSE = _object(
    id=_TEXT,
    object={"const": "response"},
    created_at=_NUMBER,
    model=_TEXT,
    status={"enum": ["completed", "incomplete"]},
    error=_NULL,
    incomplete_details=_or_null(_object(reason={"const": "max_output_tokens"})),
    output=_array(_ITEM | {"additionalProperties": True}),
    usage=_object(
        input_tokens=_NUMBER,
        input_tokens_details=_object(cached_tokens=_NUMBER, cache_write_tokens=_NUMBER),
        output_tokens=_NUMBER,
        output_tokens_details=_object(reasoning_tokens=_NUMBER),
        total_tokens=_NUMBER,
    ),
) | {"additionalProperties": True}  # what the request said comes back
_ANTHROPICS_ERROR = _object(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT), request_id=_TEXT)
_REQUEST_ID: Json = {"x-request-id": {"description": "The client's, else drawn.", "schema": _TEXT}}
_RETRY: Json = {"retry-after": {"description": "Seconds.", "schema": _NUMBER, "required": True}}
_REFUSALS: dict[str, tuple[str, bool]] = {  # status → what it means, whether it says when to come again
    "400": ("A field is wrong or not supported; the message names it.", False),
    "401": ("The API key is missing or wrong.", False),
    "403": ("The key may not do that.", False),
    "404": ("No such model; the message lists those that the key may use.", False),
    "408": ("The body came too slowly.", False),
    "413": ("The body is too large.", False),
    "415": ("The body is no application/json.", False),
    "429": ("The key's limits are reached, or a queue is full.", True),
    "431": ("The headers are too large.", False),
    "500": ("The gateway or the worker failed; its log knows the request's id.", False),
    "503": ("The model is asleep, starting or draining.", True),
    "504": ("The answer took too long.", False),
}


def _responses(ok: Json, *statuses: str, events: str | None = None, error: Json = _ERROR) -> Json:
    content: Json = {"application/json": {"schema": ok}}
    if events:
        event = {"type": "object", "properties": {"data": _TEXT}, "required": ["data"], "description": events}
        content["text/event-stream"] = {"schema": event}
    found: Json = {"200": {"description": "The answer.", "headers": _REQUEST_ID, "content": content}}
    return found | {status: _refused(error, *_REFUSALS[status]) for status in statuses}


def _refused(error: Json, description: str, says_when: bool) -> Json:  # noqa: FBT001  # a column of the table
    headers = _REQUEST_ID | (_RETRY if says_when else {})
    return {"description": description, "headers": headers, "content": {"application/json": {"schema": error}}}


def _get(name: str, summary: str, ok: Json, *statuses: str, parameters: list[Json] | None = None) -> Json:
    about = {"operationId": name, "summary": summary, "responses": _responses(ok, *statuses)}
    return {"get": about | ({"parameters": parameters} if parameters else {})}


def _post(name: str, summary: str, body: Json, ok: Json, events: str | None = None, **more: Json) -> Json:
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": _responses(ok, *_REFUSALS, events=events, **more),
        }
    }


def _bodies() -> Json:
    """Return the paths that take one."""
    return (
        _openais()
        | _anthropics()
        | {
            "/v1/embeddings": _post("createEmbedding", "Tell a vector for each text.", EMBEDDINGS_REQUEST, _EMBEDDINGS),
            **_scorers(),
            "/v1/decisions": _post(
                "createDecision", "Answer questions by probabilities.", DECISIONS_REQUEST, DECISIONS_ANSWER
            ),
            "/v1/systemone": _post(
                "createStructuredDecision", "The same, by ids of the caller's.", SYSTEMONE_REQUEST, SYSTEMONE_ANSWER
            ),
            "/tokenize": _post("tokenize", "Tell a prompt's tokens.", TOKENIZE_REQUEST, _TOKENS),
            "/detokenize": _post("detokenize", "Tell tokens' text.", DETOKENIZE_REQUEST, _object(prompt=_TEXT)),
        }
    )


def _scorers() -> Json:
    """Return the paths of models that tell numbers. Some answer under several."""
    order = "Order documents by how well they fit a query."
    pairs = "Tell how well pairs of texts fit."
    return {
        "/v1/rerank": _post("rerank", order, RERANK_REQUEST, RERANK_ANSWER),
        "/v2/rerank": _post("rerankV2", order, RERANK_REQUEST, RERANK_ANSWER),
        "/rerank": _post("rerankBare", order, RERANK_REQUEST, RERANK_ANSWER),
        "/v1/score": _post("score", pairs, SCORE_REQUEST, SCORE_ANSWER),
        "/score": _post("scoreBare", pairs, SCORE_REQUEST, SCORE_ANSWER),
        "/classify": _post("classify", "Tell how likely labels are for each text.", CLASSIFY_REQUEST, CLASSIFY_ANSWER),
    }


def _openais() -> Json:
    events = "With stream: events of {}, each with a part of the answer; then data: [DONE]. Comments while it waits."
    return {
        "/v1/completions": _post(
            "createCompletion",
            "Go on with a text.",
            COMPLETION_REQUEST,
            _COMPLETION_ANSWER,
            events.format("text_completion"),
        ),
        "/v1/chat/completions": _post(
            "createChatCompletion",
            "Answer in a conversation.",
            CHAT_REQUEST,
            _CHAT_ANSWER,
            events.format("chat.completion.chunk"),
        ),
        "/v1/responses": _post(
            "createResponse",
            "Answer a conversation, of which nothing is stored.",
            RESPONSES_REQUEST,
            _RESPONSE,
            "With stream: OpenAI's events, from response.created to response.completed. Comments while it waits.",
        ),
    }


def _anthropics() -> Json:
    return {
        "/v1/messages": _post(
            "createMessage",
            "Answer in a conversation, as Anthropic's API does.",
            MESSAGES_REQUEST,
            _MESSAGE,
            "With stream: Anthropic's events, from message_start to message_stop. Comments while it waits.",
            error=_ANTHROPICS_ERROR,
        ),
        "/v1/messages/count_tokens": _post(
            "countTokens",
            "Count the tokens of such a conversation.",
            COUNT_REQUEST,
            _object(input_tokens=_NUMBER),
            error=_ANTHROPICS_ERROR,
        ),
    }


def document() -> Json:
    """Return it."""
    parameter = {"name": "model", "in": "path", "required": True, "schema": _TEXT | {"minLength": 1}}
    list_of_models = _object(object={"const": "list"}, data=_array(_MODEL))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dormouse", "version": "1", "description": "Text of models that sleep when idle."},
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/models": _get(
                "listModels", "List all models, sleeping ones too.", list_of_models, "400", "401", "503"
            ),
            "/v1/models/{model}": _get(
                "getModel", "Describe a model.", _MODEL, "400", "401", "404", "503", parameters=[parameter]
            ),
            **_bodies(),
            "/openapi.json": _get("describe", "This document.", {"type": "object"}, "400"),
        },
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }
