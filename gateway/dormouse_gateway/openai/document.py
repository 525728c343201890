"""The OpenAPI document: what works, no more. The requests' schemas are those that are checked."""

from __future__ import annotations

from dormouse_gateway.openai.answer_schemas import (
    ANTHROPICS_ERROR,
    CHAT_ANSWER,
    COMPLETION_ANSWER,
    EMBEDDINGS,
    ERROR,
    MESSAGE,
    MODEL,
    NUMBER,
    RESPONSE,
    TEXT,
    TOKENS,
    Json,
    an_array,
    an_object,
)
from dormouse_gateway.openai.audio.schemas import AUDIO_ANSWER, TRANSCRIPTION_REQUEST, TRANSLATION_REQUEST
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

_REQUEST_ID: Json = {"x-request-id": {"description": "The client's, else drawn.", "schema": TEXT}}
_RETRY: Json = {"retry-after": {"description": "Seconds.", "schema": NUMBER, "required": True}}
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


def _responses(ok: Json, *statuses: str, events: str | None = None, error: Json = ERROR) -> Json:
    content: Json = {"application/json": {"schema": ok}}
    if events:
        event = {"type": "object", "properties": {"data": TEXT}, "required": ["data"], "description": events}
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


def _form(name: str, summary: str, fields: Json, events: str | None = None) -> Json:
    """Return a path that takes a form with a file of sound. It answers other formats than JSON as text."""
    file = {"type": "string", "format": "binary", "description": "wav, flac, ogg, mp3 or webm, at most 25 MiB."}
    properties = {name: _never_null(schema) for name, schema in fields["properties"].items()}
    body = {**fields, "properties": {**properties, "file": file}, "required": [*fields["required"], "file"]}
    made = _post(name, summary, body, AUDIO_ANSWER, events)
    content = made["post"]["requestBody"]["content"]
    content["multipart/form-data"] = content.pop("application/json")
    return made


def _never_null(schema: Json) -> Json:
    """Return a field of a form, which is there or is not."""
    said: Json = schema["anyOf"][0] if schema.get("anyOf", [])[1:] == [{"type": "null"}] else schema
    return said


def _bodies() -> Json:
    """Return the paths that take one."""
    return (
        _openais()
        | _anthropics()
        | {
            "/v1/embeddings": _post("createEmbedding", "Tell a vector for each text.", EMBEDDINGS_REQUEST, EMBEDDINGS),
            **_scorers(),
            "/v1/audio/transcriptions": _form(
                "createTranscription",
                "Tell what is said in a sound.",
                TRANSCRIPTION_REQUEST,
                "With stream: OpenAI's events, transcript.text.delta for each window, then transcript.text.done.",
            ),
            "/v1/audio/translations": _form(
                "createTranslation", "Tell in English what is said in a sound.", TRANSLATION_REQUEST
            ),
            "/v1/decisions": _post(
                "createDecision", "Answer questions by probabilities.", DECISIONS_REQUEST, DECISIONS_ANSWER
            ),
            "/v1/systemone": _post(
                "createStructuredDecision", "The same, by ids of the caller's.", SYSTEMONE_REQUEST, SYSTEMONE_ANSWER
            ),
            "/tokenize": _post("tokenize", "Tell a prompt's tokens.", TOKENIZE_REQUEST, TOKENS),
            "/detokenize": _post("detokenize", "Tell tokens' text.", DETOKENIZE_REQUEST, an_object(prompt=TEXT)),
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
            COMPLETION_ANSWER,
            events.format("text_completion"),
        ),
        "/v1/chat/completions": _post(
            "createChatCompletion",
            "Answer in a conversation.",
            CHAT_REQUEST,
            CHAT_ANSWER,
            events.format("chat.completion.chunk"),
        ),
        "/v1/responses": _post(
            "createResponse",
            "Answer a conversation, of which nothing is stored.",
            RESPONSES_REQUEST,
            RESPONSE,
            "With stream: OpenAI's events, from response.created to response.completed. Comments while it waits.",
        ),
    }


def _anthropics() -> Json:
    return {
        "/v1/messages": _post(
            "createMessage",
            "Answer in a conversation, as Anthropic's API does.",
            MESSAGES_REQUEST,
            MESSAGE,
            "With stream: Anthropic's events, from message_start to message_stop. Comments while it waits.",
            error=ANTHROPICS_ERROR,
        ),
        "/v1/messages/count_tokens": _post(
            "countTokens",
            "Count the tokens of such a conversation.",
            COUNT_REQUEST,
            an_object(input_tokens=NUMBER),
            error=ANTHROPICS_ERROR,
        ),
    }


def document() -> Json:
    """Return it."""
    parameter = {"name": "model", "in": "path", "required": True, "schema": TEXT | {"minLength": 1}}
    list_of_models = an_object(object={"const": "list"}, data=an_array(MODEL))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dormouse", "version": "1", "description": "Text of models that sleep when idle."},
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/models": _get(
                "listModels", "List all models, sleeping ones too.", list_of_models, "400", "401", "503"
            ),
            "/v1/models/{model}": _get(
                "getModel", "Describe a model.", MODEL, "400", "401", "404", "503", parameters=[parameter]
            ),
            **_bodies(),
            "/openapi.json": _get("describe", "This document.", {"type": "object"}, "400"),
        },
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }
