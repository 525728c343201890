"""/classify as vLLM has it: of each text the likeliest label, and how likely all are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse

from dormouse_api.limits import MAX_EMBED_INPUTS, MAX_MESSAGE_BYTES
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.schema_kit import BOOLEAN, array, fields, integer, one_of, request, text
from dormouse_gateway.openai.schemas import MODEL, PRIORITY, TOKEN_ID
from dormouse_gateway.openai.shapes import Json
from dormouse_gateway.openai.shares import Part, ask_parts, listed, shared_out
from dormouse_gateway.openai.texts import WorkerTexts
from dormouse_gateway.openai.wish import check_size

CLASSIFY_REQUEST = request(
    {
        "model": MODEL,
        "input": one_of(
            text(1),
            array(text(1), MAX_EMBED_INPUTS, least=1),
            array(TOKEN_ID, MAX_MESSAGE_BYTES, least=1),
            array(array(TOKEN_ID, MAX_MESSAGE_BYTES, least=1), MAX_EMBED_INPUTS, least=1),
            description=f"One text or its token ids, or a list of either: at most {MAX_EMBED_INPUTS}.",
        ),
    },
    {
        "truncate_prompt_tokens": integer(-1, (1 << 31) - 1)
        | {"description": "So many tokens of a text are used at most; -1: as many as the model takes."},
        "add_special_tokens": BOOLEAN | {"description": "To texts. Default: true."},
        "use_activation": BOOLEAN | {"description": "False: the head's own numbers. Default: true."},
        "priority": PRIORITY,
        "user": text() | {"description": "Without effect: who asks is told by the API key."},
    },
)

_NUMBER: Json = {"type": "number"}
_LABELLED: Mapping[str, Json] = {
    "index": _NUMBER,
    "label": text(),
    "probs": {"type": "array", "items": _NUMBER},
    "num_classes": _NUMBER,
}
CLASSIFY_ANSWER = listed(fields(_LABELLED, *_LABELLED))


def parts_of(body: Mapping[str, Any]) -> list[Part[pb.ClassifyRequest]]:
    """Return the calls for a body that fits CLASSIFY_REQUEST. Pure. Raises ApiError."""
    parts, start = [], 0
    for some in shared_out(_inputs(body["input"])):
        asked = pb.ClassifyRequest(model=body["model"], priority=int(body.get("priority", 0)))
        for name in ("use_activation", "add_special_tokens"):
            if name in body:
                setattr(asked, name, body[name])
        if "truncate_prompt_tokens" in body:
            asked.truncate_prompt_tokens = int(body["truncate_prompt_tokens"])
        for one in some:
            if isinstance(one, str):
                asked.inputs.add(text=one)
            else:
                asked.inputs.add().token_ids.ids.extend(map(int, one))
        check_size(asked)
        parts.append(Part(start, asked, "input"))
        start += len(some)
    return parts


def num_calls(body: Mapping[str, Any]) -> int:
    """Return how many calls a body that fits CLASSIFY_REQUEST comes to. Pure."""
    return sum(1 for _ in shared_out(_inputs(body["input"])))


async def classify(body: Mapping[str, Any], texts: WorkerTexts) -> Response:
    """Return the labels of a body that fits CLASSIFY_REQUEST. Raises ApiError, CallError."""
    told = await ask_parts(parts_of(body), texts.classify)
    return StreamingResponse(_written(body, told), media_type="application/json")


async def _written(body: Mapping[str, Any], answers: Sequence[pb.ClassifyResponse]) -> AsyncIterator[str]:
    """Yield the answer text by text: labels by the thousand of each would stop every other stream for seconds."""
    found = ((answer.labels, one.probs) for answer in answers for one in answer.classifications)
    for index, (labels, numbers) in enumerate(found):
        await asyncio.sleep(0)
        probs = list(numbers)
        told = {"index": index, "label": labels[probs.index(max(probs))], "probs": probs, "num_classes": len(probs)}
        yield ("," if index else '{"object":"list","data":[') + _json(told)
    num_tokens = sum(answer.usage.prompt_tokens for answer in answers)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    yield f'],"id":{_json(answers[0].request_id)},"model":{_json(body["model"])},"usage":{_json(usage)}}}'


def _json(told: object) -> str:
    return json.dumps(told, allow_nan=False, separators=(",", ":"))


def _inputs(said: Any) -> list[Any]:
    return [said] if isinstance(said, str) or isinstance(said[0], int | float) else said
