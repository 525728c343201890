"""The client for threads. Owns one channel; safe to share between threads."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from dormouse_api.client import traces
from dormouse_api.client.errors import from_rpc
from dormouse_api.client.retry import RetryPolicy
from dormouse_api.client.settings import Tls, chat_request, metadata, options, text_request
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Answer = TypeVar("Answer")


class Client:
    """Talks to one gateway, or to one worker. Raises ClientError and its kinds. Close it, or use it with `with`."""

    def __init__(  # noqa: PLR0913  # three of them are for tests
        self,
        address: str,
        *,
        api_key: str | None = None,
        tls: Tls | None = None,
        timeout_s: float | None = 600.0,
        retry: RetryPolicy | None = None,
        tracer: Tracer | None = None,
        sleep: Callable[[float], Any] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """Take host:port; nothing is connected before the first call.

        `timeout_s` bounds a whole call, its retries included, in seconds (None = no bound); each method can give
        another. Where OpenTelemetry is used, calls continue the current trace; `tracer` makes their spans, else the
        global provider's. `sleep`, `clock` and `rng` are for tests.
        """
        self._metadata = metadata(api_key)
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=options(None))
        else:
            self._channel = grpc.secure_channel(address, tls.credentials(), options=options(tls))
        self._stub = rpc.InferenceStub(self._channel)
        self._address = address
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy()
        self._tracer = tracer
        self._sleep = sleep
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311  # jitter needs no cryptography

    def __repr__(self) -> str:
        """Show where it talks to."""
        return f"Client({self._address})"

    def __enter__(self) -> Client:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; calls under way end with Cancelled. Safe to call twice."""
        self._channel.close()

    def generate(
        self, request: pb.GenerateRequest, *, timeout_s: float | None = None
    ) -> Generator[pb.GenerateResponse, None, None]:
        """Yield the answer's messages as they come; the last one of each choice has finish_reason and usage.

        Who stops reading (closes the iterator) ends the call. Retried only before the first message.
        """
        deadline = self._deadline(timeout_s)
        with (
            traces.begin(request, self._tracer) as trace,
            closing(self._attempts(request, deadline, (*self._metadata, *trace.metadata))) as answer,
        ):
            for response in answer:
                trace.last = response
                yield response

    def _attempts(
        self, request: pb.GenerateRequest, deadline: float | None, sent: traces.Metadata
    ) -> Generator[pb.GenerateResponse, None, None]:
        attempt = 0
        while True:
            attempt += 1
            has_begun = False
            try:
                with closing(self._stream(request, deadline, sent)) as stream:
                    for response in stream:
                        has_begun = True
                        yield response
            except grpc.RpcError as error:
                self._pause_or_raise(error, attempt, deadline, has_begun=has_begun)
            else:
                return

    def generate_text(
        self, model: str, prompt: str, *, timeout_s: float | None = None, **sampling: Any
    ) -> Iterator[str]:
        """Yield the pieces of the text that follows the prompt. `sampling` are fields of SamplingParams."""
        for response in self.generate(text_request(model, prompt, sampling), timeout_s=timeout_s):
            yield response.text

    def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None, **sampling: Any
    ) -> Iterator[str]:
        """Yield the pieces of the answer to a conversation of {"role": …, "content": …}."""
        for response in self.generate(chat_request(model, messages, sampling), timeout_s=timeout_s):
            yield response.text

    def tokenize(self, text: str, *, model: str, timeout_s: float | None = 30.0) -> Sequence[int]:
        """Return the tokens of a text. Works while the model sleeps."""
        request = pb.TokenizeRequest(model=model, text=text)
        return self._unary(self._stub.Tokenize, request, timeout_s).token_ids

    def detokenize(self, token_ids: Sequence[int], *, model: str, timeout_s: float | None = 30.0) -> str:
        """Return the text of tokens. Works while the model sleeps."""
        request = pb.DetokenizeRequest(model=model, token_ids=token_ids)
        return self._unary(self._stub.Detokenize, request, timeout_s).text

    def get_model(self, model: str, *, timeout_s: float | None = 30.0) -> pb.GetModelResponse:
        """Return what a model is. Works while it sleeps."""
        return self._unary(self._stub.GetModel, pb.GetModelRequest(model=model), timeout_s)

    def _unary(self, method: Callable[..., Answer], request: Any, timeout_s: float | None) -> Answer:
        deadline = self._deadline(timeout_s)
        sent = (*self._metadata, *traces.current(self._tracer))
        attempt = 0
        while True:
            attempt += 1
            try:
                return method(request, timeout=self._left_s(deadline), metadata=sent)
            except grpc.RpcError as error:
                self._pause_or_raise(error, attempt, deadline, has_begun=False)

    def _stream(
        self, request: pb.GenerateRequest, deadline: float | None, sent: traces.Metadata
    ) -> Generator[pb.GenerateResponse, None, None]:
        """Yield one call's messages; closed early it cancels the call."""
        call = self._stub.Generate(request, timeout=self._left_s(deadline), metadata=sent)
        try:
            yield from call
        finally:
            call.cancel()  # type: ignore[no-untyped-call]  # untyped in the stubs

    def _pause_or_raise(self, error: grpc.RpcError, attempt: int, deadline: float | None, *, has_begun: bool) -> None:
        """Wait before the next attempt, or raise what the call ended with."""
        known = from_rpc(error, has_begun=has_begun)
        left_s = self._left_s(deadline)
        delay_s = self._retry.delay_s(known, attempt=attempt, left_s=left_s, rng=self._rng)
        if delay_s is None:
            raise known from error
        self._sleep(delay_s)

    def _deadline(self, timeout_s: float | None) -> float | None:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return None if limit_s is None else self._clock() + limit_s

    def _left_s(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._clock())
