"""What sampled tokens do to their request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from dormouse_worker.common.ipc import TokenLogprobs
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
    token_ids: list[int] = []
    reason = None
    appends = [(run[0].token_id, request.keep_promise)]
    appends += [(token.token_id, request.append_drafted) for token in run[1:]]
    appends += [(token_id, request.append_forced) for token_id in run[-1].forced]
    for token_id, append in appends:
        append(token_id)
        token_ids.append(token_id)
        reason = request.finish_reason(max_model_len)
        if reason is not None:
            break
    return Progress(request, token_ids, _logprobs(run[: len(token_ids)]), reason)


def _logprobs(run: Run) -> list[TokenLogprobs] | None:
    return [token.logprobs for token in run if token.logprobs is not None] or None
