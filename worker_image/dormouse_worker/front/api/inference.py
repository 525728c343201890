"""`dormouse.v1.Inference`: what callers do with the model. Checks, tokenizes, streams; the engine does the rest."""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio

from dormouse_api.auth import Proofs
from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_worker.common.errors import WorkerError
from dormouse_worker.common.ipc import State
from dormouse_worker.common.tasks import CLASSIFY, EMBED, GENERATE, SCORE, TRANSCRIBE, wrong_task
from dormouse_worker.front.api.answers import abort, answered, unexpected
from dormouse_worker.front.calls.embedding import embed
from dormouse_worker.front.calls.generation import Generation, begin
from dormouse_worker.front.calls.scoring import classify, score
from dormouse_worker.front.calls.transcribing import transcribe
from dormouse_worker.front.decisions.deciding import decide
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.requests import validation
from dormouse_worker.front.requests.caller import (
    Caller,
    TimeLimit,
    Timeouts,
    caller_name,
    in_time,
    is_in_pod,
    read_caller,
)
from dormouse_worker.front.requests.parsing import readable
from dormouse_worker.front.requests.runtimes import check_decides
from dormouse_worker.front.requests.two_sides import check_reads
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.telemetry.tracing import UNTRACED, Traces
from dormouse_worker.front.worker import Worker

Context = aio.ServicerContext[Any, Any]

LOAD_INTERVAL_S = 0.25  # numbers are told at most so often: each message costs the worker and every gateway


class InferenceService(rpc.InferenceServicer):
    """One worker's inference calls. While the model's files cannot be read, only the state answers."""

    def __init__(self, worker: Worker, proofs: Proofs, traces: Traces = UNTRACED) -> None:
        self._worker = worker
        self._proofs = proofs
        self._traces = traces

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateResponse]:
        """Stream one request's tokens."""
        generation: Generation | None = None
        error: CallError | None = None
        arrival_s = self._worker.clock()
        try:
            model = self._known_model(readable(request).model)
            check_task(model, "Generate", GENERATE)
            settings = self._worker.settings
            time_limit = Timeouts(settings.default_timeout_s, settings.max_timeout_s).limit(context.time_remaining())
            metadata = context.invocation_metadata()
            caller = read_caller(metadata, self._proofs, time_limit, peer=context.peer())
            generation = running = await in_time(begin(self._worker, model, request, caller), time_limit)
            context.add_done_callback(lambda _: running.abandon())  # type: ignore[arg-type]  # a stub
            while (response := await generation.next()) is not None:
                yield response
        except CallError as refusal:
            await abort(context, error := refusal)
        except Exception as surprise:  # noqa: BLE001  nothing that a caller sends may end the process
            await abort(context, error := unexpected(surprise))
        finally:
            if generation is not None:
                generation.close()
            self._traces.ended(context.invocation_metadata(), arrival_s, generation, error)

    @answered
    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """Turn texts into vectors."""
        model, caller, time_limit = self._whole(request.model, context, ("Embed", EMBED))
        return await in_time(embed(self._worker, model, request, caller), time_limit)

    @answered
    async def Classify(self, request: pb.ClassifyRequest, context: Context) -> pb.ClassifyResponse:
        """Tell of texts how likely each label is."""
        model, caller, time_limit = self._whole(request.model, context, ("Classify", CLASSIFY))
        return await in_time(classify(self._worker, model, request, caller), time_limit)

    @answered
    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        """Tell of documents how well they fit a query."""
        model, caller, time_limit = self._whole(request.model, context, ("Score", SCORE))
        return await in_time(score(self._worker, model, request, caller), time_limit)

    @answered
    async def Decide(self, request: pb.DecideRequest, context: Context) -> pb.DecideResponse:
        """Answer questions by how likely their labels are."""
        model, caller, time_limit = self._whole(request.model, context, ("Decide", GENERATE))
        check_decides(self._worker.served.edition.engine.runtime)
        check_reads(self._worker.board.engine)
        return await in_time(decide(self._worker, model, request, caller), time_limit)

    async def Transcribe(self, request: pb.TranscribeRequest, context: Context) -> AsyncIterator[pb.TranscribeResponse]:
        """Turn sound into text, window by window."""
        try:
            model, caller, _ = self._whole(readable(request).model, context, ("Transcribe", TRANSCRIBE))
            async for response in transcribe(self._worker, model, request, caller):
                yield response
        except CallError as refusal:
            await abort(context, refusal)
        except Exception as surprise:  # noqa: BLE001  nothing that a caller sends may end the process
            await abort(context, unexpected(surprise))

    @answered
    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Turn text or a chat into token ids."""
        caller = caller_name(context.invocation_metadata(), self._proofs, context.peer())
        model = self._known_model(request.model)
        validation.check_size(request)
        if request.WhichOneof("input") is None:
            refuse("input", "missing", "one of text or chat is needed")
        response = await model.tokenize(request, caller)
        validation.check_made_of("input", response.token_ids, model.card.vocab_size)
        size = response.ByteSize()
        if size > MAX_MESSAGE_BYTES:
            refuse("input", f"{size} bytes as token ids", f"at most {MAX_MESSAGE_BYTES} bytes of answer")
        return response

    @answered
    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        """Turn token ids into text."""
        caller = caller_name(context.invocation_metadata(), self._proofs, context.peer())
        model = self._known_model(request.model)
        _check_size(request)
        validation.check_token_ids("token_ids", request.token_ids, model.card.vocab_size)
        response = await model.detokenize(request, caller)
        size = response.ByteSize()
        if size > MAX_MESSAGE_BYTES:
            refuse("token_ids", f"{size} bytes as text", f"at most {MAX_MESSAGE_BYTES} bytes of answer")
        return response

    @answered
    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """Describe the model."""
        del context  # whoever calls gets the same answer
        model = self._known_model(request.model)
        described = model.describe(self._worker.board.engine)
        chosen = self._worker.adapters.choose(request.model, model.names)
        described.capabilities.extend(self._worker.served.edition.identity.capabilities)
        described.adapter, described.adapter_digest = chosen.adapter, chosen.digest
        return described

    async def WatchLoad(self, request: pb.WatchLoadRequest, context: Context) -> AsyncIterator[pb.Load]:
        """Stream the load; ends when the worker does. That the worker opens or drains is told at once."""
        try:
            readable(request)
        except CallError as error:
            await abort(context, error)
        in_pod = is_in_pod(context.peer())
        async for load in self._worker.load_changes.stream(
            lambda: self._load(in_pod=in_pod),
            min_interval_s=LOAD_INTERVAL_S,
            is_urgent=lambda told: self._doors(in_pod=in_pod) != (told.ready, told.draining),
        ):
            yield load

    def _whole(self, name: str, context: Context, call: tuple[str, str]) -> tuple[Model, Caller, TimeLimit | None]:
        """Return whom a call over whole texts concerns, who makes it, and its time. Raises CallError."""
        model = self._known_model(name)
        check_task(model, *call)
        settings = self._worker.settings
        time_limit = Timeouts(settings.default_timeout_s, settings.max_timeout_s).limit(context.time_remaining())
        caller = read_caller(context.invocation_metadata(), self._proofs, time_limit, peer=context.peer())
        return model, caller, time_limit

    def _known_model(self, name: str) -> Model:
        """Return the model. Raises CallError NOT_FOUND for another name, UNAVAILABLE while there is none."""
        model = self._worker.served.edition.model
        if isinstance(model, WorkerError):
            self._worker.check_admission()
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the model's files cannot be read")
        if name and name not in model.names:
            self._worker.adapters.require(name, model.names)  # its text is the base's, loaded or not
        return model.as_told(self._worker.board.engine)

    def _doors(self, *, in_pod: bool) -> tuple[bool, bool]:
        """Return whether requests are taken, from within the pod or from elsewhere, and whether the worker drains."""
        if in_pod and self._worker.late_door.is_open:
            return (True, False)
        state, is_ending = self._worker.board.state, self._worker.is_ending
        return (state is State.READY and not is_ending, is_ending or state is State.DRAINING)

    def _load(self, *, in_pod: bool) -> pb.Load:
        step = self._worker.step
        ready, draining = self._doors(in_pod=in_pod)
        return pb.Load(
            running_requests=step.running,
            waiting_requests=step.waiting,
            kv_cache_usage=step.kv_cache_usage,
            draining=draining,
            ready=ready,
        )


def check_task(model: Model, call: str, task: str) -> None:
    """Raise CallError FAILED_PRECONDITION, naming the call that is answered, for a model of another task."""
    if model.card.task != task:
        raise CallError(grpc.StatusCode.FAILED_PRECONDITION, wrong_task(call, model.card.task))


def _check_size(request: pb.DetokenizeRequest) -> None:
    size = request.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        refuse("message", f"{size} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")
