"""/v1/embeddings: a vector for each input. A long list goes to workers in parts, each answered whole."""

from __future__ import annotations

import asyncio
import base64
import json
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse

from dormouse_api.limits import MAX_EMBED_INPUTS, MAX_MESSAGE_BYTES
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.schema_kit import BOOLEAN, integer, one_of, request, text
from dormouse_gateway.openai.schema_kit import array as items
from dormouse_gateway.openai.schemas import MODEL, PRIORITY, TOKEN_ID
from dormouse_gateway.openai.shares import Part, ask_parts, shared_out
from dormouse_gateway.openai.texts import WorkerTexts
from dormouse_gateway.openai.wish import check_size

_MOST_DIMENSIONS = 1 << 20

EMBEDDINGS_REQUEST = request(
    {
        "model": MODEL,
        "input": one_of(
            text(1),
            items(text(1), MAX_EMBED_INPUTS, least=1),
            items(TOKEN_ID, MAX_MESSAGE_BYTES, least=1),
            items(items(TOKEN_ID, MAX_MESSAGE_BYTES, least=1), MAX_EMBED_INPUTS, least=1),
            description=f"One text or its token ids, or a list of either: at most {MAX_EMBED_INPUTS}.",
        ),
    },
    {
        "dimensions": integer(1, _MOST_DIMENSIONS) | {"description": "So many numbers of each vector are kept."},
        "encoding_format": {"enum": ["float", "base64"], "description": "base64: of float32, little-endian."},
        "user": text() | {"description": "Without effect: who asks is told by the API key."},
        "normalize": BOOLEAN | {"description": "To length 1. Default: as the model's files say."},
        "truncate_prompt_tokens": integer(-1, (1 << 31) - 1)
        | {"description": "So many tokens of a text are used at most; -1: as many as the model takes."},
        "add_special_tokens": BOOLEAN | {"description": "To texts. Default: true."},
        "priority": PRIORITY,
    },
)


def parts_of(body: Mapping[str, Any]) -> list[Part[pb.EmbedRequest]]:
    """Return the calls for a body that fits EMBEDDINGS_REQUEST. Pure. Raises ApiError."""
    parts, start = [], 0
    for inputs in shared_out(_inputs(body["input"])):
        asked = pb.EmbedRequest(
            model=body["model"], dimensions=int(body.get("dimensions", 0)), priority=int(body.get("priority", 0))
        )
        for name in ("normalize", "add_special_tokens"):
            if name in body:
                setattr(asked, name, body[name])
        if "truncate_prompt_tokens" in body:
            asked.truncate_prompt_tokens = int(body["truncate_prompt_tokens"])
        for one in inputs:
            if isinstance(one, str):
                asked.inputs.add(text=one)
            else:
                asked.inputs.add().token_ids.ids.extend(map(int, one))
        check_size(asked)
        parts.append(Part(start, asked, "input"))
        start += len(inputs)
    return parts


def num_calls(body: Mapping[str, Any]) -> int:
    """Return how many calls a body that fits EMBEDDINGS_REQUEST comes to. Pure."""
    return sum(1 for _ in shared_out(_inputs(body["input"])))


async def embeddings(body: Mapping[str, Any], texts: WorkerTexts) -> Response:
    """Return the vectors of a body that fits EMBEDDINGS_REQUEST. Raises ApiError, CallError."""
    told = await ask_parts(parts_of(body), texts.embed)
    return StreamingResponse(_written(body, told), media_type="application/json")


async def _written(body: Mapping[str, Any], answers: Sequence[pb.EmbedResponse]) -> AsyncIterator[str]:
    """Yield the answer vector by vector: numbers by the million at once would stop every other stream for seconds."""
    is_packed = body.get("encoding_format") == "base64"
    vectors = (embedding.values for answer in answers for embedding in answer.embeddings)
    for index, vector in enumerate(vectors):
        await asyncio.sleep(0)
        told = {"object": "embedding", "index": index, "embedding": _packed(vector) if is_packed else list(vector)}
        yield ("," if index else '{"object":"list","data":[') + _json(told)
    num_tokens = sum(answer.usage.prompt_tokens for answer in answers)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    yield f'],"model":{_json(body["model"])},"usage":{_json(usage)}}}'


def _json(told: object) -> str:
    return json.dumps(told, allow_nan=False, separators=(",", ":"))


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(array("f", vector).tobytes()).decode()


def _inputs(said: Any) -> list[Any]:
    """Return the inputs: texts, or lists of token ids."""
    return [said] if isinstance(said, str) or isinstance(said[0], int | float) else said
