"""`dormouse.v1.Inference`: what callers do with the model. Checks, tokenizes, streams; the engine does the rest."""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio

from dormouse_api.auth import RoleTokens
from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_api.names import Role
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_worker.front import validation
from dormouse_worker.front.answers import abort, answered, unexpected
from dormouse_worker.front.control import WATCH_INTERVAL_S
from dormouse_worker.front.model import Model
from dormouse_worker.front.sampling import Prepared, to_sampling
from dormouse_worker.front.streams import OutputStream, TextRules, Times
from dormouse_worker.front.wire import to_response, to_timings
from dormouse_worker.front.worker import Worker
from dormouse_worker.ipc import Sampling, State

logger = logging.getLogger(__name__)
Context = aio.ServicerContext[Any, Any]
SEED_BITS = 64


class InferenceService(rpc.InferenceServicer):
    """One worker's inference calls. `model` is None while its files can not be read: then only the state answers."""

    def __init__(self, worker: Worker, model: Model | None, tokens: RoleTokens) -> None:
        self._worker = worker
        self._model = model
        self._tokens = tokens

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateResponse]:
        """Stream one request's tokens."""
        try:
            async for response in self._generate(request, context):
                yield response
        except CallError as error:
            await abort(context, error)
        except Exception as error:  # noqa: BLE001  nothing that a caller sends may end the process
            await abort(context, unexpected(error))

    @answered
    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Turn text or a chat into token ids."""
        del context  # whoever calls gets the same answer
        model = self._known_model(request.model)
        _check_size(request)
        if request.WhichOneof("input") is None:
            validation.refuse("input", "missing", "one of text or chat is needed")
        response = await model.tokenize(request)
        size = response.ByteSize()
        if size > MAX_MESSAGE_BYTES:
            validation.refuse("input", f"{size} bytes as token ids", f"at most {MAX_MESSAGE_BYTES} bytes of answer")
        return response

    @answered
    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        """Turn token ids into text."""
        del context  # whoever calls gets the same answer
        model = self._known_model(request.model)
        _check_size(request)
        validation.check_token_ids("token_ids", request.token_ids, model.card.vocab_size)
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        response = pb.DetokenizeResponse(text=await model.decode(list(request.token_ids), skip_special_tokens=skip))
        size = response.ByteSize()
        if size > MAX_MESSAGE_BYTES:
            validation.refuse("token_ids", f"{size} bytes as text", f"at most {MAX_MESSAGE_BYTES} bytes of answer")
        return response

    @answered
    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """Describe the model."""
        del context  # whoever calls gets the same answer
        return self._known_model(request.model).describe(self._worker.board.engine)

    async def WatchLoad(self, request: pb.WatchLoadRequest, context: Context) -> AsyncIterator[pb.Load]:
        """Stream the load; ends when the worker does."""
        del request, context  # the load depends on neither
        async for load in self._worker.load_changes.stream(self._load, min_interval_s=WATCH_INTERVAL_S):
            yield load

    async def _generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateResponse]:
        arrival_s = self._worker.clock()
        model = self._known_model(request.model)
        self._refuse_resume(request, context)
        validation.check_request(request, model.card.vocab_size)
        self._worker.check_admission()
        prompt = await model.prompt_token_ids(request)
        bad_words = await model.bad_words_token_ids(request.sampling_params.bad_words)
        sampling = self._to_sampling(request, model, prompt, bad_words)
        self._worker.check_admission()  # it may have changed while we tokenized
        stream = OutputStream(_text_rules(request, model, prompt), Times(arrival_s), clock=self._worker.clock)
        key = self._worker.requests.open(stream, prompt, sampling, priority=request.priority)
        context.add_done_callback(lambda _: self._worker.requests.abandon(key))  # type: ignore[arg-type]  # a stub
        self._worker.metrics.on_prompt(len(prompt))
        request_id = request.request_id or uuid.uuid4().hex
        is_first = True
        try:
            while True:
                piece = await stream.take()
                response = to_response(piece)
                if is_first:
                    response.seed, response.request_id, is_first = sampling.seed, request_id, False
                if piece.finish_reason is not None:
                    response.usage.prompt_tokens = len(prompt)
                    response.usage.completion_tokens = piece.completion_tokens
                    response.timings.CopyFrom(to_timings(stream.times))
                yield response
                if piece.finish_reason is not None:
                    return
        finally:
            self._worker.requests.abandon(key)
            _log_end(request_id, len(prompt), stream)

    def _to_sampling(
        self, request: pb.GenerateRequest, model: Model, prompt: list[int], bad_words: tuple[tuple[int, ...], ...]
    ) -> Sampling:
        params = request.sampling_params
        report = self._worker.board.engine.report
        max_model_len = report.max_model_len if report is not None else model.card.max_model_len
        max_tokens = validation.check_lengths(prompt, params, max_model_len)
        sampling = to_sampling(params, model.card, Prepared(max_tokens, secrets.randbits(SEED_BITS), bad_words))
        validation.check_effective(sampling)
        validation.check_choosable(sampling, model.card.vocab_size)
        return sampling

    def _refuse_resume(self, request: pb.GenerateRequest, context: Context) -> None:
        if not request.HasField("resume"):
            return
        if self._tokens.role_of(context.invocation_metadata()) is not Role.GATEWAY:
            validation.refuse("resume", "set", "only by the gateway")
        raise CallError(grpc.StatusCode.UNIMPLEMENTED, "resume: this version can not continue another worker's request")

    def _known_model(self, name: str) -> Model:
        """Return the model. Raises CallError NOT_FOUND for another name, UNAVAILABLE while there is none."""
        if self._model is None:
            self._worker.check_admission()
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the model's files can not be read")
        if name and name not in self._model.names:
            known = ", ".join(self._model.names)
            raise CallError(grpc.StatusCode.NOT_FOUND, f"model is {name!r}; this worker knows: {known}")
        return self._model

    def _load(self) -> pb.Load:
        state, step = self._worker.board.state, self._worker.step
        return pb.Load(
            running_requests=step.running,
            waiting_requests=step.waiting,
            kv_cache_usage=step.kv_cache_usage,
            draining=self._worker.is_ending or state is State.DRAINING,
            ready=state is State.READY and not self._worker.is_ending,
        )


def _text_rules(request: pb.GenerateRequest, model: Model, prompt: list[int]) -> TextRules:
    params = request.sampling_params
    skip = params.skip_special_tokens if params.HasField("skip_special_tokens") else True
    return TextRules(
        decoder=model.codec.stream(prompt, skip_special_tokens=skip),
        stops=tuple(params.stop),
        include_stop=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
    )


def _check_size(request: pb.TokenizeRequest | pb.DetokenizeRequest) -> None:
    size = request.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        validation.refuse("message", f"{size} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")


def _log_end(request_id: str, num_prompt: int, stream: OutputStream) -> None:
    """Write one line per request: sizes and times, never its words."""
    fields = {
        "request_id": request_id,
        "prompt_tokens": num_prompt,
        "completion_tokens": stream.num_tokens,
        "finish_reason": stream.finish_reason or "none",
    }
    logger.info("request ended", extra={"fields": fields})
