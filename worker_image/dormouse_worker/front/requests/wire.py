"""Between what streams said and protobuf's messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import TokenLogprobs
from dormouse_worker.front.requests.streams import Piece, Times

FINISH_REASONS = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "abort": pb.FINISH_REASON_ABORT,
}


def to_response(piece: Piece, named_ids: Sequence[int] = ()) -> pb.GenerateResponse:
    """Return the message for a piece, without what only the call as a whole knows."""
    response = pb.GenerateResponse(
        text=piece.text, token_ids=piece.token_ids, completion_tokens=piece.completion_tokens
    )
    if piece.logprobs:
        response.logprobs.extend(to_position_logprobs(piece.token_ids, piece.logprobs, named_ids))
    if piece.finish_reason is not None:
        response.finish_reason = FINISH_REASONS[piece.finish_reason]
        if piece.matched_stop is not None:
            response.matched_stop = piece.matched_stop
    return response


def to_position_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], named_ids: Sequence[int] = ()
) -> Iterator[pb.PositionLogprobs]:
    """Yield the log-probabilities of each position, whose tokens these are."""
    for token_id, position in zip(token_ids, logprobs, strict=False):
        top = zip(position.top_ids, position.top_logprobs, strict=True)
        named = zip(named_ids, position.named, strict=True)
        yield pb.PositionLogprobs(
            sampled=pb.TokenLogprob(token_id=token_id, logprob=position.sampled),
            top=[pb.TokenLogprob(token_id=top_id, logprob=logprob) for top_id, logprob in top],
            named=[pb.TokenLogprob(token_id=named_id, logprob=logprob) for named_id, logprob in named],
        )


def to_timings(times: Times) -> pb.Timings:
    """Return the durations of an ended request."""
    return pb.Timings(queue_seconds=times.queue_s, prefill_seconds=times.prefill_s, decode_seconds=times.decode_s)
