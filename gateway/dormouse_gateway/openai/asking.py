"""One question that is answered whole: from its body to its response, at whichever door."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dormouse_api.status import CallError
from dormouse_gateway.openai.bodies import unless_gone
from dormouse_gateway.openai.doors import QuestionDoor
from dormouse_gateway.openai.errors import from_call_error
from dormouse_gateway.openai.generating import Generating
from dormouse_gateway.openai.receiving import receive
from dormouse_gateway.openai.texts import WorkerTexts


async def respond(core: Generating, door: QuestionDoor, request: Request, _id: str) -> Response:
    """Answer. Raises ApiError, ClientGone."""
    received = await receive(door, request, core.keys, core.timeout_s)
    body, metadata = received.body, received.metadata
    texts = WorkerTexts(core.serve, body["model"], metadata, received.caller, received.peer)
    try:
        with core.keys.admit(metadata, num_requests=door.num_calls(body)):
            answer = await unless_gone(request, door.answer(body, texts))
        return answer if isinstance(answer, Response) else JSONResponse(answer)
    except CallError as error:
        raise door.named(from_call_error(error), body) from error
