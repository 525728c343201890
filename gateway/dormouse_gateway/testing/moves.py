"""A worker that tells the same story as every other one, from wherever it is asked to go on, until it dies.

It is as strict as a real worker in what it lets itself be resumed with, so that a gateway that counts wrong is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc

from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.testing.workers import FakeWorker

Death = Literal["reset", "draining", "internal", "abort"]


@dataclass(frozen=True, slots=True)
class Word:
    """One token, and the text that the client gets with it: "" in the middle of a character or of a stop string."""

    token: int
    text: str


STORIES: tuple[tuple[Word, ...], ...] = (
    (Word(11, "a"), Word(12, ""), Word(13, "é"), Word(14, ""), Word(15, ""), Word(16, "日b")),
    (Word(21, "c"), Word(22, "dé"), Word(23, "")),
    (Word(31, ""), Word(32, "日"), Word(33, "e"), Word(34, "f")),
)
NUM_PROMPT_LOGPROBS = 3
HANDED_OVER = pb.GenerateResponse(  # the last words of a worker whose stream another one goes on with
    text="lost",
    finish_reason=pb.FINISH_REASON_ABORT,
    usage=pb.Usage(cached_tokens=3),
    timings=pb.Timings(queue_seconds=0.25, prefill_seconds=0.5, decode_seconds=9),
)
PROMPT_TOKENS = 4


@dataclass(slots=True)
class Narrator(FakeWorker):
    """Tells `STORIES`, one choice each, in turns; gives up after `dies_after` messages of a call, in `lives` calls."""

    dies_after: int | None = None
    death: Death = "draining"
    lives: int = 1
    refuses: bool = False  # to go on with what another began
    skips: bool = False  # a token of what it goes on with
    falls_silent: bool = False  # ends what it goes on with after one message, as if that were all
    holds_after: int | None = None  # waits for `gate` after so many messages
    resumed: list[pb.GenerateRequest] = field(default_factory=list)

    async def Generate(  # noqa: N802  # the name on the wire
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Tell the stories, or what is left of one."""
        await self._note("Generate", request, context)
        if request.HasField("resume"):
            self.resumed.append(request)
            await self._check(request.resume, context)
        mortal = self.dies_after is not None and self.lives > 0
        self.lives -= mortal
        for number, message in enumerate(self._messages(request)):
            if mortal and number == self.dies_after:
                async for last in self._die(context):
                    yield last
                return
            yield message
            self.started.set()
            if self.falls_silent and request.HasField("resume"):
                return
            if number + 1 == self.holds_after:
                await self.gate.wait()
            if request.remote_decode and message.token_ids:
                yield HANDED_OVER
                return
        if mortal and self.death != "abort":
            await self._end(context)

    def _messages(self, request: pb.GenerateRequest) -> Iterator[pb.GenerateResponse]:
        """Yield what there is to say."""
        if request.HasField("resume"):
            indexes: Sequence[int] = (request.resume.choice_index,)
        else:
            indexes = range(request.sampling_params.n or 1)
        turns = {index: list(_told(index, request, skips=self.skips)) for index in indexes}
        num_tokens = sum(len(STORIES[index]) for index in indexes)
        is_first = True
        while turns:
            for index in list(turns):
                message = turns[index].pop(0)
                if is_first:
                    message.seed, message.request_id, is_first = request.sampling_params.seed, request.request_id, False
                if not turns[index]:
                    del turns[index]
                if not turns:
                    message.usage.CopyFrom(pb.Usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=num_tokens))
                yield message

    async def _check(self, resume: pb.Resume, context: Any) -> None:
        story, count = STORIES[resume.choice_index], len(resume.output_token_ids)
        is_ours = [word.token for word in story[:count]] == list(resume.output_token_ids) and count < len(story)
        is_known = resume.emitted_utf8_bytes <= len("".join(word.text for word in story[:count]).encode())
        if self.refuses or not is_ours or not is_known:
            await self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"resume is {resume}; allowed: what was said")

    async def _die(self, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        if self.death == "abort":
            yield pb.GenerateResponse(text="lost", finish_reason=pb.FINISH_REASON_ABORT)
        else:
            await self._end(context)

    async def _end(self, context: Any) -> None:
        """End the call in the way of this death; what was said before arrives before."""
        if self.death == "draining":
            await self._abort(context, grpc.StatusCode.UNAVAILABLE, "the worker shut down")
        code = grpc.StatusCode.INTERNAL if self.death == "internal" else grpc.StatusCode.UNAVAILABLE
        await context.abort(code, "connection reset")  # without the details that a worker's own words have

    async def _abort(self, context: Any, code: grpc.StatusCode, message: str) -> None:
        await context.abort_with_status(to_grpc_status(CallError(code, message, 5.0)))


def _told(index: int, request: pb.GenerateRequest, *, skips: bool) -> Iterator[pb.GenerateResponse]:
    """Yield the messages of one choice: what the client lacks of its text, then word by word."""
    story, resume = STORIES[index], request.resume
    count = len(resume.output_token_ids)
    if index == 0 and count == 0:
        for position in range(NUM_PROMPT_LOGPROBS):
            yield pb.GenerateResponse(prompt_logprobs=[_logprobs(position)])
    said = "".join(word.text for word in story[:count]).encode()[resume.emitted_utf8_bytes :].decode()
    if said:
        yield pb.GenerateResponse(choice_index=index, text=said, completion_tokens=count)
    for number, word in enumerate(story[count + skips :], start=count + skips + 1):
        message = pb.GenerateResponse(
            choice_index=index, text=word.text, token_ids=[word.token], completion_tokens=number
        )
        message.logprobs.append(_logprobs(word.token))
        if number == len(story):
            message.finish_reason = pb.FINISH_REASON_LENGTH
        yield message


def _logprobs(token: int) -> pb.PositionLogprobs:
    return pb.PositionLogprobs(sampled=pb.TokenLogprob(token_id=token, logprob=-token / 8))
