"""/classify as vLLM has it: of each text the likeliest label, and how likely all are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.inputs import INPUT, USE, USER, input_parts, usage_of, written
from dormouse_gateway.openai.schema_kit import BOOLEAN, fields, request, text
from dormouse_gateway.openai.schemas import MODEL
from dormouse_gateway.openai.shapes import Json
from dormouse_gateway.openai.shares import Part, ask_parts, listed
from dormouse_gateway.openai.texts import WorkerTexts

CLASSIFY_REQUEST = request(
    {"model": MODEL, "input": INPUT},
    {
        "use_activation": BOOLEAN | {"description": "False: the head's own numbers. Default: true."},
        **USE,
        "user": USER,
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
    return input_parts(body, lambda: pb.ClassifyRequest(use_activation=body.get("use_activation")))


async def classify(body: Mapping[str, Any], texts: WorkerTexts) -> Response:
    """Return the labels of a body that fits CLASSIFY_REQUEST. Raises ApiError, CallError."""
    told = await ask_parts(parts_of(body), texts.classify)
    rest = {"id": told[0].request_id, "model": body["model"], "usage": usage_of(told)}
    return StreamingResponse(written(_labelled(told), rest), media_type="application/json")


def _labelled(answers: Sequence[pb.ClassifyResponse]) -> Iterator[Json]:
    found = ((answer.labels, one.probs) for answer in answers for one in answer.classifications)
    for index, (labels, numbers) in enumerate(found):
        probs = list(numbers)
        yield {"index": index, "label": labels[probs.index(max(probs))], "probs": probs, "num_classes": len(probs)}
