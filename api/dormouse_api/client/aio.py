"""The client for asyncio: the same calls as `sync.Client`. Owns one channel, of the event loop that it was made in."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc import aio

from dormouse_api.client import traces
from dormouse_api.client.errors import from_rpc
from dormouse_api.client.retry import RetryPolicy
from dormouse_api.client.settings import Tls, chat_request, metadata, options, text_request
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Answer = TypeVar("Answer")


class AsyncClient:
    """Talks to one gateway, or to one worker. Raises ClientError and its kinds. Close it, or use `async with`."""

    def __init__(  # noqa: PLR0913  # three of them are for tests
        self,
        address: str,
        *,
        api_key: str | None = None,
        tls: Tls | None = None,
        timeout_s: float | None = 600.0,
        retry: RetryPolicy | None = None,
        tracer: Tracer | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """Take host:port; see `sync.Client`."""
        self._metadata = metadata(api_key)
        if tls is None:
            self._channel = aio.insecure_channel(address, options=options(None))
        else:
            self._channel = aio.secure_channel(address, tls.credentials(), options=options(tls))
        self._stub: Any = rpc.InferenceStub(self._channel)  # the stubs know it as synchronous only
        self._address = address
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy()
        self._tracer = tracer
        self._sleep = sleep
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311  # jitter needs no cryptography

    def __repr__(self) -> str:
        """Show where it talks to."""
        return f"AsyncClient({self._address})"

    async def __aenter__(self) -> AsyncClient:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls under way end with Cancelled. Safe to call twice."""
        await self._channel.close(None)

    async def generate(
        self, request: pb.GenerateRequest, *, timeout_s: float | None = None
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yield the answer's messages as they come; the last one of each choice has finish_reason and usage.

        Who stops reading (closes the iterator) ends the call. Retried only before the first message.
        """
        deadline = self._deadline(timeout_s)
        with traces.begin(request, self._tracer) as trace:
            sent = (*self._metadata, *trace.metadata)
            async with aclosing(self._attempts(request, deadline, sent)) as answer:
                async for response in answer:
                    trace.last = response
                    yield response

    async def _attempts(
        self, request: pb.GenerateRequest, deadline: float | None, sent: traces.Metadata
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        attempt = 0
        while True:
            attempt += 1
            has_begun = False
            try:
                async with aclosing(self._stream(request, deadline, sent)) as stream:
                    async for response in stream:
                        has_begun = True
                        yield response
            except grpc.RpcError as error:
                await self._pause_or_raise(error, attempt, deadline, has_begun=has_begun)
            else:
                return

    async def generate_text(
        self, model: str, prompt: str, *, timeout_s: float | None = None, **sampling: Any
    ) -> AsyncGenerator[str, None]:
        """Yield the pieces of the text that follows the prompt. `sampling` are fields of SamplingParams."""
        async with aclosing(self.generate(text_request(model, prompt, sampling), timeout_s=timeout_s)) as responses:
            async for response in responses:
                yield response.text

    async def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None, **sampling: Any
    ) -> AsyncGenerator[str, None]:
        """Yield the pieces of the answer to a conversation of {"role": …, "content": …}."""
        async with aclosing(self.generate(chat_request(model, messages, sampling), timeout_s=timeout_s)) as responses:
            async for response in responses:
                yield response.text

    async def tokenize(self, text: str, *, model: str, timeout_s: float | None = 30.0) -> Sequence[int]:
        """Return the tokens of a text. Works while the model sleeps."""
        answer: pb.TokenizeResponse = await self._unary(
            self._stub.Tokenize, pb.TokenizeRequest(model=model, text=text), timeout_s
        )
        return answer.token_ids

    async def detokenize(self, token_ids: Sequence[int], *, model: str, timeout_s: float | None = 30.0) -> str:
        """Return the text of tokens. Works while the model sleeps."""
        answer: pb.DetokenizeResponse = await self._unary(
            self._stub.Detokenize, pb.DetokenizeRequest(model=model, token_ids=token_ids), timeout_s
        )
        return answer.text

    async def get_model(self, model: str, *, timeout_s: float | None = 30.0) -> pb.GetModelResponse:
        """Return what a model is. Works while it sleeps."""
        answer: pb.GetModelResponse = await self._unary(self._stub.GetModel, pb.GetModelRequest(model=model), timeout_s)
        return answer

    async def _unary(self, method: Callable[..., Awaitable[Answer]], request: Any, timeout_s: float | None) -> Answer:
        deadline = self._deadline(timeout_s)
        sent = (*self._metadata, *traces.current(self._tracer))
        attempt = 0
        while True:
            attempt += 1
            try:
                return await method(request, timeout=self._left_s(deadline), metadata=sent)
            except grpc.RpcError as error:
                await self._pause_or_raise(error, attempt, deadline, has_begun=False)

    async def _stream(
        self, request: pb.GenerateRequest, deadline: float | None, sent: traces.Metadata
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yield one call's messages; closed early it cancels the call."""
        call = self._stub.Generate(request, timeout=self._left_s(deadline), metadata=sent)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    async def _pause_or_raise(
        self, error: grpc.RpcError, attempt: int, deadline: float | None, *, has_begun: bool
    ) -> None:
        """Wait before the next attempt, or raise what the call ended with."""
        known = from_rpc(error, has_begun=has_begun)
        left_s = self._left_s(deadline)
        delay_s = self._retry.delay_s(known, attempt=attempt, left_s=left_s, rng=self._rng)
        if delay_s is None:
            raise known from error
        await self._sleep(delay_s)

    def _deadline(self, timeout_s: float | None) -> float | None:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return None if limit_s is None else self._clock() + limit_s

    def _left_s(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._clock())
