"""One question that is answered whole: from its body to its response, at whichever door."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dormouse_api.status import CallError
from dormouse_gateway.openai.bodies import unless_gone
from dormouse_gateway.openai.doors import QuestionDoor
from dormouse_gateway.openai.errors import from_call_error
from dormouse_gateway.openai.generating import Generating
from dormouse_gateway.openai.receiving import received
from dormouse_gateway.openai.standing import telling
from dormouse_gateway.openai.texts import WorkerTexts


async def respond(core: Generating, door: QuestionDoor, request: Request, _id: str) -> Response:
    """Answer. Raises ApiError, ClientGone."""
    async with received(door, request, core) as came:
        body, metadata = came.body, came.metadata
        told: dict[str, str] = {}
        try:
            async with telling(core.keys, told, num_requests=door.num_calls(body))(metadata) as caller:
                texts = WorkerTexts(core.serve, body["model"], metadata, caller, came.peer)
                answer = await unless_gone(request, door.answer(body, texts))
            response = answer if isinstance(answer, Response) else JSONResponse(answer)
        except CallError as error:
            raise door.named(from_call_error(error).with_headers(told), body) from error
        response.headers.update(told)
        return response
