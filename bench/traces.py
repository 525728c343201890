"""What an engine in this process has answered to a request so far. The peer's Python imports it too: see `peer_env`."""

from __future__ import annotations

from collections.abc import Sequence

from bench.replies import Reply
from bench.workload import Request


class Trace:
    """One request, the tokens that came for it, and when."""

    def __init__(self, request: Request, submitted_s: float) -> None:
        self._request = request
        self._submitted_s = submitted_s
        self._tokens: list[int] = []
        self._times_s: list[float] = []
        self._cached_tokens = 0
        self.finish_reason = ""  # of the last message

    def __repr__(self) -> str:
        return f"Trace({self._request.id}, {len(self._tokens)} of {self._request.max_tokens} tokens)"

    @property
    def has_begun(self) -> bool:
        """Return whether a token came."""
        return bool(self._tokens)

    def add(self, tokens: Sequence[int], now_s: float, cached_tokens: int = 0) -> None:
        """Take one message: its tokens, and how many of the prompt's were found in the cache if it tells."""
        self._tokens += tokens
        self._times_s.append(now_s)
        self._cached_tokens = cached_tokens or self._cached_tokens

    def reply(self) -> Reply:
        """Return the whole. Raises RuntimeError if tokens are missing."""
        if len(self._tokens) != self._request.max_tokens:
            raise RuntimeError(
                f"request {self._request.id} got {len(self._tokens)} tokens of {self._request.max_tokens}"
            )
        return Reply(
            self._tokens,
            self._submitted_s,
            first_s=self._times_s[0],
            last_s=self._times_s[-1],
            num_messages=len(self._times_s),
            prompt_tokens=len(self._request.prompt),
            cached_tokens=self._cached_tokens,
        )
