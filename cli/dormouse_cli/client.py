"""The calls that the commands make. Owns the connection; knows nothing of terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc

from dormouse_api.limits import channel_options
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_cli.errors import explain

SHORT_TIMEOUT_S = 30.0


class Client:
    """Talks to one gateway, or to one worker. Raises CommandFailed only."""

    def __init__(self, channel: grpc.Channel, *, address: str, model: str, timeout_s: float) -> None:
        """Take an open channel; `timeout_s` is the limit of a whole answer."""
        self._stub = rpc.InferenceStub(channel)
        self._address = address
        self._model = model
        self._timeout_s = timeout_s

    def generate(self, request: pb.GenerateRequest) -> Iterator[pb.GenerateResponse]:
        """Yield the answer's messages. Ends the call when the caller stops reading."""
        request.model = self._model
        with self._errors():
            stream = self._stub.Generate(request, timeout=self._timeout_s)
            try:
                yield from stream
            finally:
                stream.cancel()  # type: ignore[no-untyped-call]  # untyped in the stubs

    def tokenize(self, text: str) -> Sequence[int]:
        """Return the tokens of a text."""
        with self._errors():
            answer = self._stub.Tokenize(pb.TokenizeRequest(model=self._model, text=text), timeout=SHORT_TIMEOUT_S)
        return answer.token_ids

    def model(self) -> pb.GetModelResponse:
        """Return what the model says of itself."""
        with self._errors():
            return self._stub.GetModel(pb.GetModelRequest(model=self._model), timeout=SHORT_TIMEOUT_S)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise explain(error, address=self._address) from error


@contextmanager
def connected(*, address: str, model: str, timeout_s: float) -> Iterator[Client]:
    """Give a client for this address; closes the connection at the end."""
    with grpc.insecure_channel(address, options=channel_options()) as channel:
        yield Client(channel, address=address, model=model, timeout_s=timeout_s)
