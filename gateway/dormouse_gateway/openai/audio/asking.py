"""One request for what is said in a sound, from its form to its response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dormouse_api.limits import MAX_AUDIO_BYTES
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.audio import answers
from dormouse_gateway.openai.audio.forms import FILE, MAX_FIELD_BYTES, FilledForm, read_form
from dormouse_gateway.openai.audio.schemas import (
    JSON,
    REFUSED,
    TEXT,
    TRANSCRIPTION_REQUEST,
    TRANSLATION_REQUEST,
)
from dormouse_gateway.openai.bodies import MAX_BODY_BYTES, read_whole, told_size, unless_gone
from dormouse_gateway.openai.calls import LocalCall
from dormouse_gateway.openai.checking import Schema, check
from dormouse_gateway.openai.errors import ApiError, from_call_error, openai_body
from dormouse_gateway.openai.generating import EVENTS, NOT_KEPT, Generating, closing
from dormouse_gateway.openai.headers import to_metadata
from dormouse_gateway.openai.receiving import peer_of
from dormouse_gateway.openai.standing import telling

MAX_FORM_BYTES = MAX_AUDIO_BYTES + MAX_FIELD_BYTES
_NUMBERS = {"temperature": float, "seed": int, "priority": int}
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class AudioDoor:
    """One path that takes sound."""

    path: str
    schema: Schema
    task: str


TRANSCRIPTIONS_DOOR = AudioDoor("/v1/audio/transcriptions", TRANSCRIPTION_REQUEST, "transcribe")
TRANSLATIONS_DOOR = AudioDoor("/v1/audio/translations", TRANSLATION_REQUEST, "translate")
AUDIO_DOORS = (TRANSCRIPTIONS_DOOR, TRANSLATIONS_DOOR)


async def respond(core: Generating, door: AudioDoor, request: Request, request_id: str) -> Response:
    """Answer. Raises ApiError, ClientGone."""
    metadata = to_metadata(request.headers.raw)
    core.keys.identify(metadata)  # before anything is read
    most = MAX_FORM_BYTES if told_size(request) else MAX_BODY_BYTES
    with core.images.taken(max(0, min(told_size(request), most) - MAX_BODY_BYTES)):
        body = await read_whole(request, core.timeout_s, most)
        form = read_form(body, request.headers.get("content-type", ""))
        del body
        fields = read_fields(form, door.schema)
        asked = to_message(fields, form, door.task, request_id)
        form.file = None
    told: dict[str, str] = {}
    async with AsyncExitStack() as opened:
        call = await opened.enter_async_context(
            LocalCall(core.serve, asked, metadata, telling(core.keys, told), peer=peer_of(request))
        )
        heard, wanted = answers.Heard(), fields.get("response_format", JSON)
        try:
            if not fields.get("stream"):
                await unless_gone(request, _all(call, heard))
                body_of = answers.whole(heard, wanted, door.task)
                return Response(body_of, media_type=answers.TYPES[wanted], headers=told)
            first = await unless_gone(request, call.read())
        except CallError as error:
            raise _named(from_call_error(error)).with_headers(told) from error
        events = closing(opened.pop_all(), _as_events(call, heard, first, request_id))
        return StreamingResponse(events, media_type=EVENTS, headers=told | NOT_KEPT)


def read_fields(form: FilledForm, schema: Schema) -> dict[str, Any]:
    """Return the form's fields, numbers as numbers, checked. Pure. Raises ApiError."""
    for name in form.fields:
        if name in REFUSED:
            raise ApiError(400, f"{name} is not supported: {REFUSED[name]}", param=name, code="unsupported_parameter")
    fields = {name: _typed(name, value) for name, value in form.fields.items() if value != ""}
    check(fields, schema)
    if form.file is None:
        raise ApiError(400, f"{FILE} is missing; a file of sound is needed", param=FILE)
    if len(form.file) > MAX_AUDIO_BYTES:
        raise ApiError(413, f"{FILE} has {len(form.file)} bytes; allowed: at most {MAX_AUDIO_BYTES}", param=FILE)
    if fields.get("stream") and fields.get("response_format", JSON) not in {JSON, TEXT}:
        words = f"response_format is {fields['response_format']!r}; allowed where stream is set: json, text"
        raise ApiError(400, words, param="response_format")
    return fields


def to_message(fields: Mapping[str, Any], form: FilledForm, task: str, request_id: str) -> pb.TranscribeRequest:
    """Return the call for checked fields. Pure."""
    temperature = fields.get("temperature", 0)
    return pb.TranscribeRequest(
        model=fields["model"],
        request_id=request_id,
        audio=form.file or b"",
        language=fields.get("language", ""),
        translate=task == "translate",
        prompt=fields.get("prompt", ""),
        temperatures=[temperature] if temperature else [],
        seed=fields.get("seed"),
        priority=fields.get("priority", 0),
    )


def _typed(name: str, value: str | list[str]) -> Any:
    """Return what a field means; what is no number stays text, which the schema refuses by name."""
    if name == "stream" and isinstance(value, str):
        return _BOOLEANS.get(value.lower(), value)
    if name not in _NUMBERS or not isinstance(value, str):
        return value
    try:
        return _NUMBERS[name](value)
    except ValueError:
        return value


def _named(error: ApiError) -> ApiError:
    """Return a worker's refusal under the name by which the client wrote the field."""
    if error.param == "audio":
        error.param = FILE
    elif error.param and error.param.startswith("temperatures"):
        error.param = "temperature"
    return error


async def _all(call: LocalCall, heard: answers.Heard) -> None:
    while (raw := await call.read()) is not None:
        heard.take(raw)


async def _as_events(
    call: LocalCall, heard: answers.Heard, first: bytes | None, request_id: str
) -> AsyncIterator[bytes]:
    """Yield the text of each window as it comes, then the whole."""
    raw = first
    try:
        while raw is not None:
            if text := heard.take(raw):
                yield answers.delta(text)
            raw = await call.read()
    except CallError as error:
        yield answers.failed(openai_body(from_call_error(error), request_id))
        return
    yield answers.done(heard)
    yield answers.END_MARK
