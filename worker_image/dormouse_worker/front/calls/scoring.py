"""One Classify or Score call, from its checked message to its numbers. Knows no gRPC context; raises CallError."""

from __future__ import annotations

import uuid
from array import array
from functools import partial

from dormouse_api.limits import FLOAT_BYTES, MAX_MESSAGE_BYTES, MAX_SCORE_DOCUMENTS
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.task_messages import PooledOutput, PoolingParams
from dormouse_worker.front.calls.pooling_calls import Texts, admitted, compute
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.requests import validation
from dormouse_worker.front.requests.caller import Caller
from dormouse_worker.front.requests.pooling_inputs import (
    check_common,
    check_fits,
    check_inputs,
    length_limit,
    refuse_long,
    texts_of,
    turns,
)
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.text.truncation import Pair
from dormouse_worker.front.worker import Worker

SPARE_BYTES = 64 << 10  # of an answer, for what is no number and no label
MAX_QUERY_TOKENS = MAX_MESSAGE_BYTES  # of all pairs of a call: a short message repeats a long query many times


async def classify(worker: Worker, model: Model, request: pb.ClassifyRequest, caller: Caller) -> pb.ClassifyResponse:
    """Check everything, tokenize, have the engine compute. Raises CallError."""
    arrival_s = worker.clock()
    check_common(request)
    check_inputs(request, model.card.vocab_size)
    loaded = admitted(worker, caller)
    check_answer(request, loaded)

    async def prepare(max_model_len: int) -> Texts:
        return Texts(await texts_of(model, request, caller.name, max_model_len), [])

    params = PoolingParams(use_activation=_activates(request))
    output, texts = await compute(worker, caller, prepare, params, priority=request.priority, arrival_s=arrival_s)
    told = [pb.Classification(probs=array("f", vector)) for vector in output.vectors]
    response = pb.ClassifyResponse(classifications=told, labels=loaded.labels)
    _complete(response, request, output, texts)
    return response


async def score(worker: Worker, model: Model, request: pb.ScoreRequest, caller: Caller) -> pb.ScoreResponse:
    """Check everything, tokenize pairs, have the engine compute. Raises CallError."""
    arrival_s = worker.clock()
    check_common(request)
    check_pairs(request)
    admitted(worker, caller)

    async def prepare(max_model_len: int) -> Texts:
        pairs = await _pairs_of(model, request, caller.name, max_model_len)
        return Texts([pair.token_ids for pair in pairs], [pair.second_start for pair in pairs])

    params = PoolingParams(use_activation=_activates(request))
    output, texts = await compute(worker, caller, prepare, params, priority=request.priority, arrival_s=arrival_s)
    response = pb.ScoreResponse(scores=[array("f", vector)[0] for vector in output.vectors])
    _complete(response, request, output, texts)
    return response


def check_answer(request: pb.ClassifyRequest, model: ModelInfo) -> None:
    """All numbers fit the answer. Raises CallError INVALID_ARGUMENT."""
    labels_bytes = sum(len(label.encode()) for label in model.labels)
    most = max(1, (MAX_MESSAGE_BYTES - SPARE_BYTES - labels_bytes) // (len(model.labels) * FLOAT_BYTES + 8))
    if len(request.inputs) > most:
        limit = f"at most {most} with {len(model.labels)} labels: an answer has {MAX_MESSAGE_BYTES} bytes"
        refuse("inputs", f"{len(request.inputs)} texts", limit)


def check_pairs(request: pb.ScoreRequest) -> None:
    """Check everything that needs no tokenizing. Raises CallError INVALID_ARGUMENT."""
    if not request.query:
        refuse("query", "empty", "at least 1 character")
    if not 1 <= len(request.documents) <= MAX_SCORE_DOCUMENTS:
        refuse("documents", f"{len(request.documents)} texts", f"1 to {MAX_SCORE_DOCUMENTS}")
    if "" in request.documents:
        refuse(f"documents[{list(request.documents).index('')}]", "empty", "at least 1 character")


def check_repeated(query_tokens: int, num_documents: int) -> None:
    """The query of all pairs together has no more tokens than a message could bring. Raises CallError."""
    most = MAX_QUERY_TOKENS // max(1, query_tokens)
    if num_documents > most:
        refuse(
            "documents", f"{num_documents} texts beside a query of {query_tokens} tokens", f"at most {most} beside it"
        )


def _activates(request: pb.ClassifyRequest | pb.ScoreRequest) -> bool:
    return request.use_activation if request.HasField("use_activation") else True


async def _pairs_of(model: Model, request: pb.ScoreRequest, caller: str, max_model_len: int) -> list[Pair]:
    """Return the query with each document, checked. Several short documents share a turn. Raises CallError."""
    cut, limit = length_limit(request, max_model_len), max_model_len
    check_fits("query", request.query, model, limit)
    query = await model.work.run(
        partial(model.codec.encode, request.query, add_special_tokens=False),
        caller=caller,
        num_bytes=len(request.query),
    )
    room = (cut or limit) - len(query) - model.codec.num_pair_tokens
    if room < 1:
        allowed = f"at most {(cut or limit) - model.codec.num_pair_tokens - 1}, so that 1 token of a document fits"
        refuse("query", f"{len(query)} tokens", allowed)
    check_repeated(len(query), len(request.documents))
    most = min(request.max_tokens_per_doc or limit, room) if cut else request.max_tokens_per_doc

    def pairs(turn: list[tuple[int, str]]) -> list[Pair]:
        for place, document in turn:
            if not 0 < most <= room:
                check_fits(f"documents[{place}]", document, model, room)
        return model.codec.encode_pairs(request.query, [document for _, document in turn], most)

    found: list[Pair] = []
    sizes = [_text_bytes(document, most) for document in request.documents]
    for turn in turns(request.documents, [size + len(request.query) for size in sizes]):
        num_bytes = sum(sizes[place] for place, _ in turn) + len(request.query)
        found += await model.work.run(partial(pairs, turn), caller=caller, num_bytes=num_bytes)
    _check_found(found, model.card.vocab_size, limit)
    return found


def _check_found(pairs: list[Pair], vocab_size: int, limit: int) -> None:
    for place, pair in enumerate(pairs):
        if pair.num_document_tokens == 0:
            refuse(f"documents[{place}]", "0 tokens", "at least 1 token")
        if (num_tokens := len(pair.token_ids)) > limit:
            refuse_long(f"documents[{place}]", f"{num_tokens} tokens with the query", limit, may_cut=True)
        validation.check_made_of(f"documents[{place}]", pair.token_ids, vocab_size)


def _text_bytes(document: str, most: int) -> int:
    """Return how much of a document is tokenized, about."""
    return min(len(document), 16 * most) if most else len(document)


def _complete(
    response: pb.ClassifyResponse | pb.ScoreResponse,
    request: pb.ClassifyRequest | pb.ScoreRequest,
    output: PooledOutput,
    texts: Texts,
) -> None:
    response.request_id = request.request_id or uuid.uuid4().hex
    response.usage.prompt_tokens = texts.num_tokens
    response.timings.queue_seconds, response.timings.prefill_seconds = output.queue_seconds, output.prefill_seconds
