"""From the questions of one Decide call to requests, which line up together. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dormouse_worker.common.ipc import AddRequest, Sampling
from dormouse_worker.common.task_messages import AddDecision


def requests_of(message: AddDecision) -> Iterator[AddRequest]:
    """Yield a request for each branch: the likeliest token, and the log-probabilities of the named ones."""
    branches = zip(message.request_ids, message.branches, message.logprob_token_ids, strict=True)
    for request_id, branch, named in branches:
        yield AddRequest(
            request_id,
            message.prompt_token_ids + branch,
            _reading(tuple(named)),
            priority=message.priority,
            cache_salt=message.cache_salt,
            adapter=message.adapter,
        )


def _reading(named: tuple[int, ...]) -> Sampling:
    return Sampling(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, max_tokens=1, logprobs=0, logprob_token_ids=named
    )
