"""Sends the load: each request at its own time, whatever became of the others. Knows no options and draws nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Protocol

from dormouse_api.client import ClientError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_cli.load.figures import Run, Seen

_LAG_SAMPLE_S = 0.02
Clock = Callable[[], float]
OnEnd = Callable[[Seen], None]


class Client(Protocol):
    """Whom requests are sent to: `dormouse_api.client.AsyncClient`, and whatever a benchmark compares with."""

    def generate(self, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yield the answer's messages as they come. Raises ClientError."""
        ...


@dataclass(slots=True)
class Drive:
    """One run. Owns what was seen so far, so that a run that is cut short has it."""

    client: Client
    requests: Sequence[pb.GenerateRequest]
    due_s: Sequence[float]  # of each, in ascending order
    max_concurrency: int
    on_end: OnEnd = lambda _: None
    clock: Clock = time.monotonic
    seen: list[Seen] = field(default_factory=list)
    _began: float = 0.0
    _lag_s: list[float] = field(default_factory=list)

    async def run(self) -> Run:
        """Send everything and return what was seen; cancelled (Ctrl-C), end the calls and return what there is."""
        self.seen = [Seen(due_s) for due_s in self.due_s]
        slots = asyncio.Semaphore(self.max_concurrency)
        self._began = self.clock()
        is_interrupted = False
        duration_s = 0.0
        tasks = {asyncio.create_task(self._sample_lag())}
        try:
            await self._send_each(slots, tasks)
        except asyncio.CancelledError:
            is_interrupted = True
        finally:
            duration_s = self._now()
            await _end(tasks)
        return Run(self.seen, duration_s, self._lag_s, is_interrupted)

    async def _send_each(self, slots: asyncio.Semaphore, tasks: set[asyncio.Task[None]]) -> None:
        calls: list[asyncio.Task[None]] = []
        for request, seen in zip(self.requests, self.seen, strict=True):
            wait_s = seen.due_s - self._now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            seen.ready_s = self._now()
            calls.append(asyncio.create_task(self._call(request, seen, slots)))
            tasks.add(calls[-1])
            await asyncio.sleep(0)  # what is due is sent before the next one is looked at
        await asyncio.gather(*calls)

    async def _call(self, request: pb.GenerateRequest, seen: Seen, slots: asyncio.Semaphore) -> None:
        async with slots:
            seen.sent_s = self._now()
            await ask(self.client, request, seen, self._now)
        self.on_end(seen)

    async def _sample_lag(self) -> None:
        """Note how much later than asked the loop comes back: so late are the times of messages, too."""
        while True:
            asked = self.clock() + _LAG_SAMPLE_S
            await asyncio.sleep(_LAG_SAMPLE_S)
            self._lag_s.append(max(0.0, self.clock() - asked))

    def _now(self) -> float:
        return self.clock() - self._began


async def ask(client: Client, request: pb.GenerateRequest, seen: Seen, now: Clock) -> None:
    """Make one call and note what came when."""
    try:
        async with aclosing(client.generate(request)) as answer:
            async for response in answer:
                _note(seen, response, now)
    except ClientError as error:
        seen.error, seen.words = error.code.name, str(error)
    else:
        seen.is_done = True


def _note(seen: Seen, response: pb.GenerateResponse, now: Clock) -> None:
    if response.token_ids:
        seen.token_s.append(now())
        seen.output_tokens += len(response.token_ids)
    if response.HasField("usage"):
        seen.input_tokens = response.usage.prompt_tokens
        seen.output_tokens = response.usage.completion_tokens
        seen.draft_tokens = response.usage.draft_tokens
        seen.accepted_draft_tokens = response.usage.accepted_draft_tokens
    if response.finish_reason == pb.FINISH_REASON_ABORT:
        seen.error, seen.words = "ABORTED", "the worker ended the answer"


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
