"""A worker that talks: what tests of the HTTP API stand on."""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.testing.workers import FakeWorker

PROMPT_TOKENS = 5
TEXT_TOKENS = (1, 2)  # of every text
WORDS = {1: "Hello", 2: " dor", 3: "mouse", 7: "\N{REPLACEMENT CHARACTER}", 8: 4096 * "z"}


def word(token_id: int) -> str:
    """Return a token's text."""
    return WORDS.get(token_id, f"<{token_id}>")


class TalkingWorker(FakeWorker):
    """Says the words of `tokens`, each choice as all others; knows usage and, where asked for, log-probabilities."""

    image_tokens: int = 0  # told in usage
    video_tokens: int = 0
    audio_tokens: int = 0
    matched_stop: str | None = None  # the stop string that ends each choice
    parts: Mapping[int, Sequence[pb.AnswerPart]] | None = None  # what the n-th token says; None = not told apart

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        """Stream one message per token; the last one of each choice says why it ended."""
        params, num_choices = request.sampling_params, request.sampling_params.n or 1
        said = self.tokens[: params.max_tokens] if params.max_tokens else self.tokens
        async for message in super().Generate(request, context):
            if message.finish_reason:
                break
            if message.completion_tokens > len(said):
                continue
            for choice in range(num_choices):
                yield self._message(message, choice, request)
        reason = pb.FINISH_REASON_LENGTH if len(said) == params.max_tokens else pb.FINISH_REASON_STOP
        for choice in range(num_choices):
            is_last = choice == num_choices - 1
            usage = pb.Usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=len(said) * num_choices, cached_tokens=2)
            usage.image_tokens, usage.video_tokens = self.image_tokens, self.video_tokens
            usage.audio_tokens = self.audio_tokens
            if request.prediction:  # of three tokens, however long it is
                usage.accepted_prediction_tokens, usage.rejected_prediction_tokens = 2, 1
            yield pb.GenerateResponse(
                finish_reason=reason,
                choice_index=choice,
                completion_tokens=len(said),
                matched_stop=self.matched_stop,
                usage=usage if is_last else None,
            )

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        """Every text is the same tokens."""
        await self._note("Tokenize", request, context)
        return pb.TokenizeResponse(token_ids=TEXT_TOKENS)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        """Return the words."""
        await self._note("Detokenize", request, context)
        words = [word(token_id) for token_id in request.token_ids]
        if request.separately:
            return pb.DetokenizeResponse(token_texts=words)
        return pb.DetokenizeResponse(text="".join(words))

    def _message(self, bare: pb.GenerateResponse, choice: int, request: pb.GenerateRequest) -> pb.GenerateResponse:
        """Return the token's message with its text and what is asked for besides."""
        (token_id,), count = bare.token_ids, bare.completion_tokens
        params = request.sampling_params
        message = pb.GenerateResponse(
            text=word(token_id), token_ids=[token_id], choice_index=choice, completion_tokens=count
        )
        if self.parts is not None:
            message.parsed = True
            message.parts.extend(self.parts.get(count, ()))
        if params.HasField("logprobs"):
            message.logprobs.append(_position(token_id, params.logprobs))
        if params.HasField("prompt_logprobs") and count == 1:
            prompt = request.token_ids.ids or TEXT_TOKENS
            positions = [_position(token, params.prompt_logprobs) for token in prompt[1:]]
            message.prompt_logprobs.extend(positions)
        return message


def _position(token_id: int, count: int) -> pb.PositionLogprobs:
    """Return a position whose likeliest token is the sampled one, and the next ones less likely."""
    top = [pb.TokenLogprob(token_id=token_id + rank, logprob=-0.25 - rank) for rank in range(count)]
    return pb.PositionLogprobs(sampled=pb.TokenLogprob(token_id=token_id, logprob=-0.25), top=top)
