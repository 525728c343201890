"""What tests of the gateway stand on: a worker that does as it is told, and builders of what Kubernetes would say.

The worker is a real gRPC server with the real service; only its answers are made up.
"""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from dormouse_api.limits import roomy, server_options
from dormouse_api.names import API_VERSION, KIND, LABEL_DEPLOYMENT, LABEL_REVISION
from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_gateway.model import Deployment, Endpoint, EndpointId
from dormouse_kube.api import PODS
from dormouse_kube.reflector import ObjectKey
from dormouse_kube.testing import FakeKube

NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Seen:
    """One call as it reached the worker."""

    method: str
    request: Any
    metadata: tuple[tuple[str, str], ...]
    timeout_s: float | None

    def values(self, key: str) -> list[str]:
        """Return what the metadata says under this key."""
        return [value for name, value in self.metadata if name == key]


@dataclass(slots=True)
class FakeWorker(rpc.InferenceServicer):
    """Streams `tokens`, then ends; fails, stalls or dies on command; remembers every call."""

    name: str = "worker"
    capabilities: tuple[str, ...] = ()  # () = it does not say
    digest: str = "sha256:same"  # "" = it does not tell the gateway
    tokens: tuple[int, ...] = (1, 2, 3)
    fail_before: CallError | None = None  # instead of the first message
    fail_after: CallError | None = None  # instead of the last one
    is_gated: bool = False  # waits for `gate` after the first message
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Seen] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    load: pb.Load = field(default_factory=lambda: pb.Load(ready=True))
    watchers: int = 0  # streams of WatchLoad that are open
    _load_changed: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    _server: Any = None

    @property
    def address(self) -> str:
        """Return host:port."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen on any free port of loopback, the former one if there was one."""
        self._server = aio.server(options=roomy(server_options()))
        rpc.add_InferenceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Break every connection and close the port."""
        await self._server.stop(None)

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        """Stream one message per token; the last one says why it ended."""
        await self._note("Generate", request, context)
        try:
            for count, token in enumerate(self.tokens, start=1):
                if count <= len(request.resume.output_token_ids):
                    continue
                yield pb.GenerateResponse(token_ids=[token], completion_tokens=count, request_id=request.request_id)
                self.started.set()
                if self.is_gated:
                    await self.gate.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise
        await _fail(context, self.fail_after)
        yield pb.GenerateResponse(finish_reason=pb.FINISH_REASON_STOP)

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        """Return for each text its length and its first byte."""
        await self._note("Embed", request, context)
        texts = [one.text.encode() or one.token_ids.ids for one in request.inputs]
        vectors = [pb.Embedding(values=[len(text), text[0]]) for text in texts]
        return pb.EmbedResponse(embeddings=vectors, usage=pb.Usage(prompt_tokens=sum(map(len, texts))))

    async def Classify(self, request: pb.ClassifyRequest, context: Any) -> pb.ClassifyResponse:
        """Return for each text the parts of two labels, by its first byte."""
        await self._note("Classify", request, context)
        texts = [one.text.encode() or one.token_ids.ids for one in request.inputs]
        told = [pb.Classification(probs=[text[0] / 256, 1 - text[0] / 256]) for text in texts]
        usage = pb.Usage(prompt_tokens=sum(map(len, texts)))
        return pb.ClassifyResponse(
            classifications=told, labels=["low", "high"], usage=usage, request_id=request.request_id
        )

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        """Return for each document its length by that of the query."""
        await self._note("Score", request, context)
        scores = [len(document) / len(request.query) for document in request.documents]
        usage = pb.Usage(prompt_tokens=sum(map(len, request.documents)))
        return pb.ScoreResponse(scores=scores, usage=usage, request_id=request.request_id)

    async def Decide(self, request: pb.DecideRequest, context: Any) -> pb.DecideResponse:
        """Find each option half as likely as the one before it; refuse what is asked as LOUD."""
        await self._note("Decide", request, context)
        answers = [_decided(question) for question in request.questions]
        usage = pb.Usage(prompt_tokens=10 * len(answers), cached_tokens=8 * (len(answers) - 1))
        return pb.DecideResponse(answers=answers, usage=usage, request_id=request.request_id)

    async def Transcribe(self, request: pb.TranscribeRequest, context: Any) -> AsyncIterator[pb.TranscribeResponse]:
        """Hear a word for each byte of the sound, a second each; die before `!`, unless one is to go on there."""
        await self._note("Transcribe", request, context)
        first = request.resume.first_frame // 100
        for place, byte in enumerate(request.audio[first:], start=first):
            if byte == ord("!") and place > first:
                await _fail(context, unavailable("it died"))
            response = pb.TranscribeResponse(next_frame=100 * (place + 1))
            number = request.resume.num_segments + place - first
            response.segments.add(id=number, start=place, end=place + 1, text=f" {chr(byte)}")
            if place == first:
                response.language, response.duration = request.language or "en", len(request.audio)
                response.request_id = request.request_id
            if place + 1 == len(request.audio):
                response.usage.prompt_tokens, response.usage.completion_tokens = 3, len(request.audio)
            yield response

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        """Return one token per byte."""
        await self._note("Tokenize", request, context)
        return pb.TokenizeResponse(token_ids=request.text.encode())

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        """Return one byte per token."""
        await self._note("Detokenize", request, context)
        return pb.DetokenizeResponse(text=bytes(request.token_ids).decode())

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        """Return the worker's name as the model's."""
        if request.model:  # without it, it is the gateway that asks, for itself
            await self._note("GetModel", request, context)
        elif not self.digest:
            await _fail(context, unavailable("the model's files cannot be read"))
        return pb.GetModelResponse(name=self.name, model_digest=self.digest, capabilities=self.capabilities)

    async def WatchLoad(self, request: pb.WatchLoadRequest, context: Any) -> AsyncIterator[pb.Load]:  # noqa: ARG002
        """Stream the load as `tell_load` sets it."""
        self.watchers += 1
        try:
            while True:
                changed = self._load_changed
                yield self.load
                await changed.wait()
        finally:
            self.watchers -= 1

    def tell_load(self, **fields: Any) -> None:
        """Have another load from now on; what is not named is none."""
        self.load = pb.Load(**{"ready": True, **fields})
        self._load_changed.set()
        self._load_changed = asyncio.Event()

    async def _note(self, method: str, request: Any, context: Any) -> None:
        metadata = tuple((key, value) for key, value in context.invocation_metadata())
        self.seen.append(Seen(method, request, metadata, context.time_remaining()))
        await _fail(context, self.fail_before)


def _decided(question: pb.DecideQuestion) -> pb.DecideAnswer:
    if question.instructions == "LOUD":
        return pb.DecideAnswer(refusal="too loud")
    count = len(question.choice.options) or len(question.score.levels) or 2
    weights = [2.0**-place for place in range(count)]
    return pb.DecideAnswer(
        probabilities=[weight / sum(weights) for weight in weights], label_mass=0.5, argmax_is_label=True
    )


async def _fail(context: Any, error: CallError | None) -> None:
    if error:
        await context.abort_with_status(to_grpc_status(error))


@asynccontextmanager
async def running_workers(count: int) -> AsyncIterator[list[FakeWorker]]:
    """Start so many workers, named w0, w1, …; stop them at the end."""
    workers = [FakeWorker(name=f"w{index}") for index in range(count)]
    for worker in workers:
        await worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            await worker.stop()


def unavailable(message: str = "draining", retry_after_s: float = 3.0) -> CallError:
    """Return what a worker says that cannot take a request now."""
    return CallError(grpc.StatusCode.UNAVAILABLE, message, retry_after_s)


def infd(name: str, *, namespace: str = NAMESPACE, model: str | None = None, **spec: Any) -> dict[str, Any]:
    """Return an InferenceDeployment; `model` is its spec.model.name."""
    named = {"name": model} if model else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"uri": "pvc://models/tiny", **named}, "replicas": 1, **spec},
    }


def pod(
    name: str,
    deployment: str,
    address: str = "10.0.0.1:50051",
    *,
    ready: bool = True,
    revision: str = "r1",
    uid: str = "",
    http_port: int = 0,
) -> dict[str, Any]:
    """Return a running worker pod that answers at this address; without a UID the API server gives it one."""
    host, _, port = address.rpartition(":")
    ports = [{"name": "grpc", "containerPort": int(port)}]
    ports += [{"name": "http", "containerPort": http_port}] if http_port else []
    return {
        "metadata": {
            **({"uid": uid} if uid else {}),
            "name": name,
            "namespace": NAMESPACE,
            "labels": {LABEL_DEPLOYMENT: deployment, LABEL_REVISION: revision},
        },
        "spec": {"containers": [{"name": "worker", "ports": ports}]},
        "status": {
            "phase": "Running",
            "podIP": host,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def set_ready(kube: FakeKube, name: str, *, ready: bool) -> None:
    """Flip a pod's Ready condition."""
    status = "True" if ready else "False"
    kube.edit(PODS, NAMESPACE, name, lambda obj: obj["status"].update(conditions=[{"type": "Ready", "status": status}]))


def deployment(name: str = "tiny", **changes: Any) -> Deployment:
    """Return a parsed deployment."""
    key = ObjectKey(NAMESPACE, name)
    plain = Deployment(key=key, uid=f"uid-{name}", created="2026-01-01T00:00:00Z", model_name=name)
    return dataclasses.replace(plain, **changes)


def endpoint(name: str, deployment_name: str = "tiny", *, ready: bool = True, address: str = "10.0.0.1:1") -> Endpoint:
    """Return a parsed endpoint."""
    return Endpoint(
        id=EndpointId(f"uid-{name}", address),
        pod=ObjectKey(NAMESPACE, name),
        deployment=ObjectKey(NAMESPACE, deployment_name),
        ready=ready,
        revision="r1",
    )
