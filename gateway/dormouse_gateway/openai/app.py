"""The paths of the API, and the one place where what went wrong becomes a response."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dormouse_api.status import CallError
from dormouse_gateway import refusals
from dormouse_gateway.model import Meant
from dormouse_gateway.openai import asking
from dormouse_gateway.openai.audio import asking as hearing
from dormouse_gateway.openai.bodies import ClientGone
from dormouse_gateway.openai.document import document
from dormouse_gateway.openai.doors import QUESTION_DOORS, TEXT_DOORS
from dormouse_gateway.openai.errors import ApiError, Words, encoded, from_call_error, openai_body
from dormouse_gateway.openai.generating import Generating
from dormouse_gateway.openai.headers import (
    ANTHROPICS_ID,
    REQUEST_ID,
    check_framing,
    check_size,
    request_id,
    to_metadata,
)
from dormouse_gateway.router import Router

_LOG = logging.getLogger(__name__)
_CLIENT_GONE = 499  # nobody gets it; nginx's number for what a log says of it

Respond = Callable[[Request, str], Awaitable[Response]]
OnResponse = Callable[[str, int], None]  # path, status


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path and method. Every response carries the request's id."""

    path: str
    respond: Respond
    on_response: OnResponse
    words: Words = openai_body  # in which it refuses

    async def __call__(self, request: Request) -> Response:
        """Answer; whatever goes wrong becomes an error object."""
        drawn = str(uuid.uuid4())
        try:
            check_size(request.headers.raw)
            check_framing(request.headers.raw)
            drawn = request_id(request.headers.raw) or drawn
            response = await self.respond(request, drawn)
        except ApiError as error:
            response = self._refusal(error, drawn)
        except CallError as error:
            response = self._refusal(from_call_error(error), drawn)
        except ClientGone:
            response = Response(status_code=_CLIENT_GONE)
        except Exception:  # noqa: BLE001  # the outermost layer: whatever it is becomes a response and a log line
            _LOG.exception("error in request %s", drawn)
            words = f"the gateway failed; look for {drawn} in its log"
            response = self._refusal(ApiError(500, words, "server_error"), drawn)
        response.headers[REQUEST_ID] = response.headers[ANTHROPICS_ID] = drawn
        self.on_response(self.path, response.status_code)
        return response

    def _refusal(self, error: ApiError, drawn: str) -> Response:
        return Response(encoded(self.words(error, drawn)), error.status, error.headers)


@dataclass(frozen=True, slots=True)
class Models:
    """What can be asked for, sleeping or not."""

    router: Router
    generating: Generating

    async def list(self, request: Request, _id: str) -> Response:
        """Return all models that the key may use."""
        found = self._found(request)
        return JSONResponse(
            {"object": "list", "data": [self._told(name, each) for name, each in sorted(found.items())]}
        )

    async def get(self, request: Request, _id: str) -> Response:
        """Return one model by any name under which it answers."""
        name = request.path_params["model"]
        caller = self.generating.keys.identify(to_metadata(request.headers.raw))
        return JSONResponse(self._told(name, self.router.resolve(name, caller)))

    def _told(self, name: str, meant: Meant) -> dict[str, Any]:
        """Return a model as OpenAI's clients read it; an adapter's parent is its base."""
        deployment = meant.deployment
        created = int(datetime.fromisoformat(deployment.created).timestamp())
        told = {"id": name, "object": "model", "created": created, "owned_by": deployment.key.namespace}
        return told | ({"parent": self.router.catalogue.shortest(deployment)} if meant.adapter else {})

    def _found(self, request: Request) -> dict[str, Meant]:
        caller = self.generating.keys.identify(to_metadata(request.headers.raw))
        if not self.router.is_synced:
            raise refusals.not_synced()
        models = {name: Meant(deployment) for name, deployment in self.router.models(caller).items()}
        return self.router.adapters(caller) | models


def make_app(router: Router, generating: Generating, on_response: OnResponse = lambda *_: None) -> Starlette:
    """Return the API; each response is told to `on_response`."""
    models = Models(router, generating)
    described = json.dumps(document(), ensure_ascii=False).encode()

    async def describe(_request: Request, _id: str) -> Response:
        return Response(described, media_type="application/json")

    async def missing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await Endpoint("other", partial(_refuse_path, error), on_response)(request)

    def route(method: str, path: str, respond: Respond, words: Words = openai_body) -> Route:
        endpoint = Endpoint(path.replace(":path", ""), respond, on_response, words)
        return Route(path, endpoint.__call__, methods=[method])  # a function, as starlette asks for

    routes = [
        route("GET", "/v1/models", models.list),
        route("GET", "/v1/models/{model:path}", models.get),
        *(route("POST", door.path, partial(generating.respond, door), door.words) for door in TEXT_DOORS),
        *(route("POST", door.path, partial(asking.respond, generating, door), door.words) for door in QUESTION_DOORS),
        *(route("POST", door.path, partial(hearing.respond, generating, door)) for door in hearing.AUDIO_DOORS),
        route("GET", "/openapi.json", describe),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: missing})


async def _refuse_path(error: HTTPException, request: Request, _id: str) -> Response:
    words = f"{request.method} {request.url.path}: {error.detail}; /openapi.json tells what is there"
    refusal = ApiError(error.status_code, words)
    return Response(encoded(refusal.body), refusal.status, {**refusal.headers, **(error.headers or {})})
