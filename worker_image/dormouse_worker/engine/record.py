"""What sampled tokens do to their request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from dormouse_worker.engine.batch import SampledToken
from dormouse_worker.engine.forward_pass import Progress
from dormouse_worker.engine.request import Request

Run = Sequence[SampledToken]  # of one sequence in one pass, never empty

_request_id = attrgetter("request_id")


def runs_of(sampled: Iterable[SampledToken]) -> Iterator[Run]:
    """Yield the tokens of each sequence."""
    return (list(run) for _, run in groupby(sampled, _request_id))


def record(request: Request, run: Run, max_model_len: int) -> Progress:
    """Append a pass's tokens to the request, up to the one that completes it: sampled ones, then what these force."""
    first = run[0]
    if len(run) > 1 or first.forced:
        return _record_run(request, run, max_model_len)
    request.keep_promise(first.token_id)
    request.expected_token_ids = first.expected
    logprobs = None if first.logprobs is None else [first.logprobs]
    return Progress(request, [first.token_id], logprobs, request.finish_reason(max_model_len))


def _record_run(request: Request, run: Run, max_model_len: int) -> Progress:
    token_ids = [token.token_id for token in run]
    num_scored = len(token_ids)
    token_ids += run[-1].forced
    count, reason = request.cut(token_ids, max_model_len)
    del token_ids[count:]
    request.keep_run(token_ids, num_right=min(count, num_scored) - 1)
    request.expected_token_ids = run[-1].expected
    logprobs = None if run[0].logprobs is None else [token.logprobs for token in run[:count] if token.logprobs]
    return Progress(request, token_ids, logprobs, reason)
