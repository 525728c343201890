"""The callers' door of a stand-in worker."""

# ruff: noqa: ARG002, N802  the methods are those of the .proto file
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

from .generating import generate, text_of
from .worker import DRAINING, MODEL_LEN, READY, UNMET, VOCAB, Worker, follow


class Inference(rpc.InferenceServicer):
    """`dormouse.v1.Inference` of a model that generates."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateResponse]:
        role = self.worker.role_of(context)
        try:
            yield from generate(self.worker, request, role, context.add_callback)
        except CallError as error:
            context.abort_with_status(to_grpc_status(error))

    def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        context.abort(UNMET, "this model generates: call Generate")
        raise AssertionError

    def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        return pb.GetModelResponse(name="stand-in", vocab_size=VOCAB, max_model_len=MODEL_LEN, task="generate")

    def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        return pb.TokenizeResponse(token_ids=request.text.encode())

    def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        return pb.DetokenizeResponse(text=text_of(list(request.token_ids)))

    def WatchLoad(self, request: pb.WatchLoadRequest, context: Any) -> Iterator[pb.Load]:
        worker = self.worker
        load = lambda: pb.Load(ready=worker.state == READY, draining=worker.state == DRAINING)  # noqa: E731
        yield from follow(worker, lambda: worker.state, load, context)


class Health(health_pb2_grpc.HealthServicer):
    """gRPC's health."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def Check(self, request: Any, context: Any) -> health_pb2.HealthCheckResponse:
        serves = self.worker.state == READY
        return health_pb2.HealthCheckResponse(status=1 if serves else 2)
