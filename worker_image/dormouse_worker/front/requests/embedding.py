"""One Embed call, from its checked message to its vectors. Knows no gRPC context; raises CallError."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from dormouse_api.limits import FLOAT_BYTES, MAX_EMBED_INPUTS, MAX_MESSAGE_BYTES, MAX_PRIORITY
from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import ModelInfo, PooledOutput, PoolingParams
from dormouse_worker.front.requests import validation
from dormouse_worker.front.requests.caller import Caller
from dormouse_worker.front.requests.pooled import PooledAnswer
from dormouse_worker.front.requests.streams import Times
from dormouse_worker.front.requests.validation import refuse
from dormouse_worker.front.text.served_model import Model
from dormouse_worker.front.text.turns import LONG_BYTES
from dormouse_worker.front.worker import Worker

Placed = tuple[int, pb.EmbedInput]  # an input, and its place in the call

SPARE_BYTES = 64 << 10  # of an answer, for what is no vector


async def embed(worker: Worker, model: Model, request: pb.EmbedRequest, caller: Caller) -> pb.EmbedResponse:
    """Check everything, tokenize, have the engine compute. Raises CallError."""
    arrival_s = worker.clock()
    check_embed(request, model.card.vocab_size)
    worker.check_admission()
    loaded, report = worker.board.engine.model, worker.board.engine.report
    assert loaded is not None, "a worker that admits has loaded"
    assert report is not None, "and profiled"
    check_dimensions(request, loaded)
    with worker.requests.preparing(1):
        texts = await _token_ids(model, request, caller.name, report.max_model_len)
        _check_texts(texts, request, model.card.vocab_size, report.max_model_len)
    worker.check_admission()  # it may have changed while we tokenized
    answer = PooledAnswer(Times(arrival_s))
    params = PoolingParams(request.dimensions, request.normalize if request.HasField("normalize") else None)
    num_tokens = sum(map(len, texts))
    worker.metrics.on_prompt(num_tokens)
    key = worker.requests.open_pooling(answer, texts, params, priority=request.priority)
    try:
        output = await answer.wait()
    finally:
        worker.requests.abandon([key])
    return _response(request, output, num_tokens)


def check_embed(request: pb.EmbedRequest, vocab_size: int) -> None:
    """Check everything that needs no tokenizing. Raises CallError INVALID_ARGUMENT."""
    if (size := request.ByteSize()) > MAX_MESSAGE_BYTES:
        refuse("message", f"{size} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")
    validation.check_request_id(request.request_id)
    if abs(request.priority) > MAX_PRIORITY:
        refuse("priority", str(request.priority), f"from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    if not 1 <= len(request.inputs) <= MAX_EMBED_INPUTS:
        refuse("inputs", f"{len(request.inputs)} texts", f"1 to {MAX_EMBED_INPUTS}")
    if request.HasField("truncate_prompt_tokens") and not _may_truncate(request.truncate_prompt_tokens):
        refuse("truncate_prompt_tokens", str(request.truncate_prompt_tokens), "-1, or at least 1")
    for place, one in enumerate(request.inputs):
        kind = one.WhichOneof("input")
        if kind is None or (kind == "text" and not one.text) or (kind == "token_ids" and not one.token_ids.ids):
            refuse(f"inputs[{place}]", "empty", "at least 1 character, or 1 token")
        if kind == "token_ids":
            validation.check_token_ids(f"inputs[{place}].token_ids", one.token_ids.ids, vocab_size)


def check_dimensions(request: pb.EmbedRequest, model: ModelInfo) -> None:
    """Vectors can be cut so, and all of them fit the answer. Raises CallError INVALID_ARGUMENT."""
    wanted, size = request.dimensions, model.embedding_size
    if wanted and model.dimensions and wanted not in model.dimensions:
        refuse("dimensions", str(wanted), f"{', '.join(map(str, model.dimensions))}, which the model was trained for")
    if wanted > size:
        refuse("dimensions", str(wanted), f"at most {size}, as the model's vectors have")
    most = (MAX_MESSAGE_BYTES - SPARE_BYTES) // ((wanted or size) * FLOAT_BYTES)
    if len(request.inputs) > most:
        limit = f"at most {most} with vectors of {wanted or size} numbers: an answer has {MAX_MESSAGE_BYTES} bytes"
        refuse("inputs", f"{len(request.inputs)} texts", limit)


def _may_truncate(num_tokens: int) -> bool:
    return num_tokens == -1 or num_tokens >= 1


async def _token_ids(model: Model, request: pb.EmbedRequest, caller: str, max_model_len: int) -> list[list[int]]:
    """Return each text's ids. Several short texts share a turn. Raises CallError."""
    special = request.add_special_tokens if request.HasField("add_special_tokens") else True
    most = request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else 0
    most = max_model_len if most == -1 else min(most, max_model_len)

    def ids(placed: Placed) -> list[int]:
        place, one = placed
        if one.WhichOneof("input") == "token_ids":
            return list(one.token_ids.ids)
        if most:
            return model.codec.encode_first(one.text, most, add_special_tokens=special)
        _check_fits(place, one.text, model, max_model_len)
        return model.codec.encode(one.text, add_special_tokens=special)

    found: list[list[int]] = []
    for turn in _turns(request.inputs):
        found += await model.work.run(
            partial(list, map(ids, turn)), caller=caller, num_bytes=sum(_text_bytes(one, most) for _, one in turn)
        )
    return found


def _turns(inputs: Sequence[pb.EmbedInput], num_bytes: int = 16 << 10) -> list[list[Placed]]:
    """Return the inputs in groups of about so many bytes of text: nobody else waits for longer than for one group."""
    turns: list[list[Placed]] = []
    room = 0
    for place, one in enumerate(inputs):
        if room <= 0:
            turns.append([])
            room = num_bytes
        turns[-1].append((place, one))
        room -= len(one.text) + 1
    return turns


def _check_fits(place: int, text: str, model: Model, limit: int) -> None:
    """Refuse text that is too long however it is tokenized: a tokenizer may take minutes for a megabyte."""
    if len(text) <= LONG_BYTES or (bound := model.codec.bound) is None:  # sooner tokenized than the bound is known
        return
    if (least := bound.min_tokens(text)) > limit:
        _refuse_long(place, f"at least {least} tokens", limit, is_text=True)


def _text_bytes(one: pb.EmbedInput, most: int) -> int:
    """Return how much of a text is tokenized, about."""
    return min(len(one.text), 16 * most) if most else len(one.text)


def _check_texts(texts: Sequence[Sequence[int]], request: pb.EmbedRequest, vocab_size: int, limit: int) -> None:
    for place, text in enumerate(texts):
        if not text:
            refuse(f"inputs[{place}]", "0 tokens", "at least 1 token")
        if len(text) > limit:
            _refuse_long(place, f"{len(text)} tokens", limit, is_text=bool(request.inputs[place].text))
        validation.check_made_of(f"inputs[{place}]", text, vocab_size)


def _refuse_long(place: int, value: str, limit: int, *, is_text: bool) -> NoReturn:
    more = "; truncate_prompt_tokens -1 cuts texts" if is_text else ""
    allowed = f"at most the model length {limit}{more}"
    refuse(f"inputs[{place}]", value, allowed, reason=CONTEXT_LENGTH_EXCEEDED)


def _response(request: pb.EmbedRequest, output: PooledOutput, num_tokens: int) -> pb.EmbedResponse:
    response = pb.EmbedResponse(request_id=request.request_id or uuid.uuid4().hex)
    for vector in output.vectors:
        response.embeddings.add().values.extend(array("f", vector))
    response.usage.prompt_tokens = num_tokens
    response.timings.queue_seconds, response.timings.prefill_seconds = output.queue_seconds, output.prefill_seconds
    return response
