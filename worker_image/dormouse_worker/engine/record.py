"""What sampled tokens do to their request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    request.keep_promise(first.token_id)
    token_ids, reason = [first.token_id], request.finish_reason(max_model_len)
    for token_id, append in _behind_first(request, run) if len(run) > 1 or first.forced else ():
        if reason is not None:
            break
        append(token_id)
        token_ids.append(token_id)
        reason = request.finish_reason(max_model_len)
    request.expected_token_ids = run[-1].expected
    logprobs = None if first.logprobs is None else [token.logprobs for token in run[: len(token_ids)] if token.logprobs]
    return Progress(request, token_ids, logprobs, reason)


def _behind_first(request: Request, run: Run) -> Iterator[tuple[int, Callable[[int], None]]]:
    """Yield the tokens behind a run's first, each with what appends it."""
    yield from ((token.token_id, request.append_drafted) for token in run[1:])
    yield from ((token_id, request.append_forced) for token_id in run[-1].forced)
