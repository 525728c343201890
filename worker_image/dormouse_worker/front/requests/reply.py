"""The messages of one call: what pieces become, and what the first and the last one carry besides. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.answers.parser import AnswerParser
from dormouse_worker.front.engine.adapter_board import BASE, ChosenModel
from dormouse_worker.front.images.sight import TEXT_ALONE, PartTokens
from dormouse_worker.front.requests.answer_parts import parts_of
from dormouse_worker.front.requests.streams import OutputStream, Piece
from dormouse_worker.front.requests.wire import to_position_logprobs, to_response, to_timings


@dataclass(frozen=True, slots=True)
class Facts:
    """What a call's messages say that does not come from the engine."""

    request_id: str
    seed: int
    prompt_token_ids: Sequence[int]
    parsers: Sequence[AnswerParser] = ()  # one for each choice; none = nothing is told apart
    chosen: ChosenModel = BASE
    logprob_token_ids: Sequence[int] = ()
    part_tokens: PartTokens = TEXT_ALONE


class Reply:
    """Owns what was said so far. One final message for each choice; usage stands in the last of all."""

    def __init__(self, facts: Facts, streams: Sequence[OutputStream]) -> None:
        self._facts = facts
        self._streams = streams
        self._num_open = len(streams)
        self._is_first = True
        self._prompt_position = 1  # of the next prompt log-probability; the first token has none

    def __repr__(self) -> str:
        return f"Reply({self._facts.request_id}, {self._num_open} of {len(self._streams)} choices open)"

    @property
    def is_complete(self) -> bool:
        """Return whether every choice has got its last message."""
        return self._num_open == 0

    def message(self, stream: OutputStream, piece: Piece) -> pb.GenerateResponse:
        """Return the next message."""
        response = to_response(piece, self._facts.logprob_token_ids)
        if stream.choice_index:
            response.choice_index = stream.choice_index
        if self._is_first:
            response.seed, response.request_id, self._is_first = self._facts.seed, self._facts.request_id, False
            response.adapter_digest = self._facts.chosen.digest
        if self._facts.parsers:
            response.parsed = True
            response.parts.extend(parts_of(self._facts.parsers[stream.choice_index], piece))
        if piece.prompt_logprobs:
            self._add_prompt_logprobs(response, piece)
        if piece.finish_reason is not None:
            self._end_choice(response, stream)
        return response

    def log_fields(self) -> dict[str, object]:
        """Return sizes and ends for the log, never words."""
        return {
            "request_id": self._facts.request_id,
            "prompt_tokens": len(self._facts.prompt_token_ids),
            "completion_tokens": sum(stream.num_tokens for stream in self._streams),
            "finish_reason": ",".join(stream.finish_reason or "none" for stream in self._streams),
        }

    def _add_prompt_logprobs(self, response: pb.GenerateResponse, piece: Piece) -> None:
        start = self._prompt_position
        self._prompt_position += len(piece.prompt_logprobs)
        token_ids = self._facts.prompt_token_ids[start : self._prompt_position]
        response.prompt_logprobs.extend(to_position_logprobs(token_ids, piece.prompt_logprobs))

    def _end_choice(self, response: pb.GenerateResponse, stream: OutputStream) -> None:
        self._num_open -= 1
        response.timings.CopyFrom(to_timings(stream.times))
        if self.is_complete:
            usage = response.usage
            usage.prompt_tokens = len(self._facts.prompt_token_ids)
            usage.completion_tokens = sum(stream.num_tokens for stream in self._streams)
            of_parts = self._facts.part_tokens
            usage.image_tokens, usage.video_tokens, usage.audio_tokens = (
                of_parts.images,
                of_parts.videos,
                of_parts.sounds,
            )
            usage.cached_tokens = self._streams[0].cached_tokens
            usage.accepted_prediction_tokens = sum(stream.accepted_prediction_tokens for stream in self._streams)
            usage.rejected_prediction_tokens = sum(stream.rejected_prediction_tokens for stream in self._streams)
            usage.draft_tokens = sum(stream.draft_tokens for stream in self._streams)
            usage.accepted_draft_tokens = sum(stream.accepted_draft_tokens for stream in self._streams)
