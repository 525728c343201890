"""/v1/embeddings: a vector for each input. A long list goes to workers in parts, each answered whole."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.inputs import INPUT, USE, USER, input_parts, usage_of, written
from dormouse_gateway.openai.schema_kit import BOOLEAN, integer, request
from dormouse_gateway.openai.schemas import MODEL
from dormouse_gateway.openai.shapes import Json
from dormouse_gateway.openai.shares import Part, ask_parts
from dormouse_gateway.openai.texts import WorkerTexts

_MOST_DIMENSIONS = 1 << 20

EMBEDDINGS_REQUEST = request(
    {"model": MODEL, "input": INPUT},
    {
        "dimensions": integer(1, _MOST_DIMENSIONS) | {"description": "So many numbers of each vector are kept."},
        "encoding_format": {"enum": ["float", "base64"], "description": "base64: of float32, little-endian."},
        "user": USER,
        "normalize": BOOLEAN | {"description": "To length 1. Default: as the model's files say."},
        **USE,
    },
)


def parts_of(body: Mapping[str, Any]) -> list[Part[pb.EmbedRequest]]:
    """Return the calls for a body that fits EMBEDDINGS_REQUEST. Pure. Raises ApiError."""
    dimensions, normalize = int(body.get("dimensions", 0)), body.get("normalize")
    return input_parts(body, lambda: pb.EmbedRequest(dimensions=dimensions, normalize=normalize))


async def embeddings(body: Mapping[str, Any], texts: WorkerTexts) -> Response:
    """Return the vectors of a body that fits EMBEDDINGS_REQUEST. Raises ApiError, CallError."""
    told = await ask_parts(parts_of(body), texts.embed)
    is_packed = body.get("encoding_format") == "base64"
    rest = {"model": body["model"], "usage": usage_of(told)}
    return StreamingResponse(written(_vectors(told, is_packed=is_packed), rest), media_type="application/json")


def _vectors(answers: Sequence[pb.EmbedResponse], *, is_packed: bool) -> Iterator[Json]:
    vectors = (embedding.values for answer in answers for embedding in answer.embeddings)
    for index, vector in enumerate(vectors):
        yield {"object": "embedding", "index": index, "embedding": _packed(vector) if is_packed else list(vector)}


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(array("f", vector).tobytes()).decode()
