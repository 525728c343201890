"""How a gateway and the operator that counts for all talk: what is to be told goes together, limits and verdicts."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dormouse_api.quotas import Limit, Use, Verdict
from dormouse_api.v1 import gateway_control_pb2 as pb
from dormouse_gateway.clients.key_files import ApiKey

_HEARTBEAT_S = 5.0  # after so long of nothing to tell, a sign of life


class Outbox:
    """What is to be told to one operator; what comes while it is being told goes together."""

    def __init__(self) -> None:
        self._next = pb.LimitQuestions()
        self._some = asyncio.Event()

    def put(self, message: pb.LimitQuestion | pb.LimitUse) -> None:
        """Tell it with what else there is."""
        (self._next.questions if isinstance(message, pb.LimitQuestion) else self._next.uses).append(message)  # type: ignore[arg-type]  # each has its list
        self._some.set()

    def wake(self) -> None:
        """Have whoever waits for something to tell look again."""
        self._some.set()

    async def take(self) -> pb.LimitQuestions:
        """Return all that is to be told, as soon as there is something; empty as a sign of life."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEARTBEAT_S):
                await self._some.wait()
        self._some.clear()
        told, self._next = self._next, pb.LimitQuestions()
        return told


def question(number: int, key: ApiKey, asked: Use) -> pb.LimitQuestion:
    """Return the question whether a key may use so much."""
    quota = key.quota
    return pb.LimitQuestion(
        id=number,
        key=key.name,
        requests=asked.requests,
        tokens=asked.tokens,
        requests_per_minute=quota.requests_per_minute or 0,
        requests_per_day=quota.requests_per_day or 0,
        tokens_per_minute=quota.tokens_per_minute or 0,
        tokens_per_day=quota.tokens_per_day or 0,
    )


def read_verdict(answer: pb.LimitAnswer) -> Verdict:
    """Return what an operator said."""
    requests, tokens = (
        Limit(state.limit, state.remaining, state.reset_seconds) if state.limit else None
        for state in (answer.requests, answer.tokens)
    )
    said = answer.is_granted, answer.retry_after_seconds, answer.reached, answer.is_final
    return Verdict(*said, requests, tokens)
