"""/v1/rerank as cohere's clients send it, and /v1/score as vLLM has it: how well documents fit a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from dormouse_api.limits import MAX_SCORE_DOCUMENTS
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import refuse
from dormouse_gateway.openai.inputs import USER, usage_of
from dormouse_gateway.openai.schema_kit import BOOLEAN, FREE, array, fields, integer, one_of, request, text
from dormouse_gateway.openai.schemas import MODEL, PRIORITY
from dormouse_gateway.openai.shapes import Json
from dormouse_gateway.openai.shares import USAGE, Part, ask_parts, listed, shared_out
from dormouse_gateway.openai.texts import WorkerTexts
from dormouse_gateway.openai.wish import check_size

MAX_QUERY_CHARS = 8 << 20  # of all calls of a body: each has the query of its own
_MOST_TOKENS = (1 << 31) - 1
_TEXTS = array(text(1), MAX_SCORE_DOCUMENTS, least=1)
_COMMON: Mapping[str, Json] = {
    "truncate_prompt_tokens": integer(-1, _MOST_TOKENS)
    | {"description": "Maximum tokens of a pair, whose document is cut; -1: as many as the model takes."},
    "use_activation": BOOLEAN | {"description": "False: the head's own numbers. Default: true."},
    "priority": PRIORITY,
    "user": USER,
}
RERANK_REQUEST = request(
    {
        "model": MODEL,
        "query": text(1) | {"description": "What is looked for."},
        "documents": array(one_of(text(1), fields({"text": text(1)}, "text")), MAX_SCORE_DOCUMENTS, least=1)
        | {"description": "Texts, or objects with a text each."},
    },
    {
        "top_n": integer(1, _MOST_TOKENS) | {"description": "So many results are told, the best. Default: all."},
        "return_documents": BOOLEAN | {"description": "Tell each result's document as well. Default: false."},
        "max_tokens_per_doc": integer(1, _MOST_TOKENS)
        | {"description": "Only this number of tokens at the start of a document is used."},
        **_COMMON,
    },
)
_SIDE = one_of(text(1), _TEXTS)
SCORE_REQUEST = request(
    {
        "model": MODEL,
        "text_1": _SIDE | {"description": "One text, or as many as text_2 has: pairs then."},
        "text_2": _SIDE | {"description": "What text_1 is scored with."},
    },
    _COMMON,
)

_NUMBER: Json = {"type": "number"}
_RESULT = {"index": _NUMBER, "relevance_score": _NUMBER, "document": fields({"text": text()}, "text")}
_RERANKED: Mapping[str, Json] = {
    "id": text(),
    "model": text(),
    "results": array(fields(_RESULT, "index", "relevance_score"), MAX_SCORE_DOCUMENTS),
    "meta": FREE,
    "usage": USAGE,
}
_SCORED: Mapping[str, Json] = {"index": _NUMBER, "object": {"const": "score"}, "score": _NUMBER}
RERANK_ANSWER = fields(_RERANKED, *_RERANKED)
SCORE_ANSWER = listed(fields(_SCORED, *_SCORED))


def rerank_parts(body: Mapping[str, Any]) -> list[Part[pb.ScoreRequest]]:
    """Return the calls for a body that fits RERANK_REQUEST. Pure. Raises ApiError."""
    return _parts(body, ("query", body["query"]), _documents(body), "documents", 0)


def score_parts(body: Mapping[str, Any]) -> list[Part[pb.ScoreRequest]]:
    """Return the calls for a body that fits SCORE_REQUEST: a text and many, or pairs. Pure. Raises ApiError."""
    queries, documents = _listed(body["text_1"]), _listed(body["text_2"])
    if len(queries) == 1:
        return _parts(body, ("text_1", queries[0]), documents, "text_2", 0)
    if len(queries) != len(documents):
        counts = f"{len(queries)} texts beside {len(documents)} of text_2"
        raise refuse("text_1", counts, "1 text, or as many as text_2 has")
    pairs = enumerate(zip(queries, documents, strict=True))
    return list(
        chain.from_iterable(
            _parts(body, (f"text_1[{place}]", query), [one], "text_2", place) for place, (query, one) in pairs
        )
    )


def num_rerank_calls(body: Mapping[str, Any]) -> int:
    """Return how many calls a body that fits RERANK_REQUEST comes to. Pure."""
    return sum(1 for _ in shared_out(_documents(body)))


def num_score_calls(body: Mapping[str, Any]) -> int:
    """Return how many calls a body that fits SCORE_REQUEST comes to. Pure."""
    queries = len(_listed(body["text_1"]))
    return queries if queries > 1 else sum(1 for _ in shared_out(_listed(body["text_2"])))


async def rerank(body: Mapping[str, Any], texts: WorkerTexts) -> Json:
    """Return the documents of a body that fits RERANK_REQUEST by their scores. Raises ApiError, CallError."""
    told = await ask_parts(rerank_parts(body), texts.score)
    scores = _scores(told)
    best = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[
        : int(body.get("top_n") or len(scores))
    ]
    documents = _documents(body) if body.get("return_documents") else None
    return {
        "id": told[0].request_id,
        "model": body["model"],
        "results": [
            {"index": place, "relevance_score": scores[place]}
            | ({"document": {"text": documents[place]}} if documents is not None else {})
            for place in best
        ],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        "usage": usage_of(told),
    }


async def score(body: Mapping[str, Any], texts: WorkerTexts) -> Json:
    """Return the score of each pair of a body that fits SCORE_REQUEST, in order. Raises ApiError, CallError."""
    told = await ask_parts(score_parts(body), texts.score)
    found = [{"index": place, "object": "score", "score": one} for place, one in enumerate(_scores(told))]
    return {
        "id": told[0].request_id,
        "object": "list",
        "model": body["model"],
        "data": found,
        "usage": usage_of(told),
    }


def _parts(
    body: Mapping[str, Any], query: tuple[str, str], documents: Sequence[str], name: str, start: int
) -> list[Part[pb.ScoreRequest]]:
    """Return the calls for a query, with what the body calls it, and documents. Raises ApiError."""
    shares, parts = list(shared_out(documents)), []
    if len(shares) * len(query[1]) > MAX_QUERY_CHARS:
        value = f"{len(documents)} texts in {len(shares)} calls with {len(query[1])} characters of {query[0]} each"
        raise refuse(name, value, f"at most {MAX_QUERY_CHARS} characters in all calls")
    for some in shares:
        asked = pb.ScoreRequest(model=body["model"], query=query[1], documents=some)
        for field in ("truncate_prompt_tokens", "max_tokens_per_doc", "priority"):
            if field in body:
                setattr(asked, field, int(body[field]))
        if "use_activation" in body:
            asked.use_activation = body["use_activation"]
        check_size(asked)
        parts.append(Part(start, asked, name, query[0]))
        start += len(some)
    return parts


def _documents(body: Mapping[str, Any]) -> list[str]:
    return [one if isinstance(one, str) else one["text"] for one in body["documents"]]


def _listed(said: Any) -> list[str]:
    return [said] if isinstance(said, str) else list(said)


def _scores(told: Sequence[pb.ScoreResponse]) -> list[float]:
    return [one for answer in told for one in answer.scores]
