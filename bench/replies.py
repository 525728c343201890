"""What came back for one request, and the figures that are made of it. Pure; times are those of CLOCK_MONOTONIC."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec


class Reply(msgspec.Struct, frozen=True):
    """One request's tokens and when they came, in seconds of one clock for all processes."""

    tokens: list[int]
    submitted_s: float
    first_s: float  # the first token was there
    last_s: float
    num_messages: int = 1  # that brought tokens
    prompt_tokens: int = 0  # as the worker counts them; 0 = it does not say
    cached_tokens: int = 0  # of them


def num_tokens(replies: Sequence[Reply]) -> int:
    """Return how many tokens came in all."""
    return sum(len(reply.tokens) for reply in replies)


def wall_s(replies: Sequence[Reply]) -> float:
    """Return the time from the first submission to the last token."""
    return max(reply.last_s for reply in replies) - min(reply.submitted_s for reply in replies)


def tokens_per_s(replies: Sequence[Reply]) -> float:
    """Return output tokens per second of wall time."""
    return num_tokens(replies) / wall_s(replies)


def ttft_ms(replies: Sequence[Reply]) -> float:
    """Return the median time to the first token."""
    return 1e3 * median(reply.first_s - reply.submitted_s for reply in replies)


def tpot_ms(replies: Sequence[Reply]) -> float:
    """Return the median time per output token after the first; replies of one token do not count."""
    spans = [(reply.last_s - reply.first_s, len(reply.tokens) - 1) for reply in replies]
    return 1e3 * median(seconds / count for seconds, count in spans if count > 0)


def num_equal(ours: Sequence[Reply], peer: Sequence[Reply]) -> int:
    """Return how many requests got the same tokens from both."""
    return sum(one.tokens == other.tokens for one, other in zip(ours, peer, strict=True))
