"""What keys used at this gateway, and whether they may use more: asked of the operator, which counts for all gateways.

Every request of a key with limits is one question; those that come while others are on their way go together. What was
refused and nobody can give back is refused here until its time. Without an operator, or where it does not answer in
time, the gateway counts alone, with its part of each limit: it neither opens what is limited nor closes.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import grpc

from dormouse_api.quotas import Clocks, Ledger, Quota, Use, Verdict, judge
from dormouse_api.status import CallError
from dormouse_api.v1 import gateway_control_pb2 as pb
from dormouse_gateway.clients.key_files import ApiKey
from dormouse_gateway.clients.outbox import Outbox, question, read_verdict

ANSWER_S = 1.0  # so long the operator may take; a request must not wait for one that hangs
_SOON_S = 1.0  # tokens may be given back at any time: what was refused for them is asked again then
ASSUMED_TOKENS = 256  # of a request, before this key has had one
_WEIGHT = 0.1  # of the last request in the average
_STEP_TOKENS = 64  # an answer that runs over what was reserved counts in such steps


@dataclass(slots=True, unsafe_hash=True)
class LimitReached(CallError):
    """A key's limit keeps a request out. `headers` say where the key stands, as OpenAI's clients read it."""

    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Known:
    """What is known of one key here."""

    ledger: Ledger = field(default_factory=Ledger)
    tokens_per_request: float = float(ASSUMED_TOKENS)
    refused: Verdict | None = None  # the last one, of `quota`, at this time
    refused_s: float = 0.0
    quota: Quota = field(default_factory=Quota)


class Admission:
    """One request that was let in: what was reserved for it, and what it took. Use up, then `close`."""

    def __init__(self, counting: Counting, key: ApiKey, verdict: Verdict, reserved: Use) -> None:
        """Take what was reserved, now."""
        self._counting = counting
        self._key = key
        self._reserved_s = counting.clock()
        self._num_requests = reserved.requests
        self._charged = reserved.tokens
        self._used = 0
        self.headers = headers_of(verdict)

    def add(self, tokens: int) -> None:
        """Count tokens, negative where an estimate was too much."""
        self._used += tokens
        if self._used >= self._charged + _STEP_TOKENS:
            self._settle()

    def close(self) -> None:
        """Give back what was not used."""
        self._settle()
        if self._used > 0:
            self._counting.learn(self._key, self._used / max(1, self._num_requests))

    def _settle(self) -> None:
        missing = self._used - self._charged
        self._charged = self._used
        self._counting.settle(self._key, missing, at_s=self._reserved_s if missing < 0 else self._counting.clock())


class Counting:
    """What keys with limits used here. Owns the questions to the operator."""

    def __init__(
        self,
        *,
        num_gateways: int = 1,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        answer_s: float = ANSWER_S,
    ) -> None:
        """Take how many gateways share limits as long as no operator said it."""
        self.clock = clock
        self.name = uuid.uuid4().hex  # another one after each start: what was counted before stays counted
        self._wall = wall
        self._answer_s = answer_s
        self._num_gateways = num_gateways
        self._known: dict[str, _Known] = {}
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[pb.LimitAnswer]] = {}
        self._outbox: Outbox | None = None  # of the operator that counts now

    def __repr__(self) -> str:
        """Show whether an operator counts, and for how many keys."""
        return f"Counting({'shared' if self._outbox else 'alone'}, {len(self._known)} keys)"

    @property
    def is_shared(self) -> bool:
        """Return whether an operator counts for all gateways."""
        return self._outbox is not None

    @asynccontextmanager
    async def admit(self, key: ApiKey, num_requests: int) -> AsyncIterator[Admission]:
        """Let a request of a key with limits in. Raises LimitReached."""
        known = self._known.setdefault(key.name, _Known())
        asked = Use(num_requests, round(known.tokens_per_request * num_requests) if _counts_tokens(key.quota) else 0)
        verdict = self._still_refused(known, key.quota) or await self._judge(key, known, asked)
        if not verdict.is_granted:
            known.refused, known.refused_s, known.quota = verdict, self.clock(), key.quota
            raise _reached(key, verdict)
        self._add(known.ledger, asked, self.clock())
        admission = Admission(self, key, verdict, asked)
        try:
            yield admission
        finally:
            admission.close()

    def settle(self, key: ApiKey, tokens: int, *, at_s: float) -> None:
        """Count tokens beyond what was reserved, or give back some."""
        if not tokens or not _counts_tokens(key.quota):
            return
        known = self._known.setdefault(key.name, _Known())
        self._add(known.ledger, Use(0, tokens), at_s)
        if self._outbox:
            age_s = max(0.0, self.clock() - at_s)
            self._outbox.put(pb.LimitUse(key=key.name, seconds=[pb.UsedInSecond(age_seconds=age_s, tokens=tokens)]))

    def learn(self, key: ApiKey, tokens: float) -> None:
        """Take what a request took in all."""
        known = self._known.setdefault(key.name, _Known())
        known.tokens_per_request += _WEIGHT * (tokens - known.tokens_per_request)

    def forget(self) -> None:
        """Forget keys of which there is nothing to remember. To be called now and then."""
        now_s, day = self.clock(), self._clocks().day
        self._known = {name: known for name, known in self._known.items() if not known.ledger.is_idle(now_s, day)}

    async def questions(self, is_over: Callable[[], bool]) -> AsyncIterator[pb.LimitQuestions]:
        """Yield what an operator that counts from now on has to know; the one before, if there is one, ends."""
        self.leave()
        outbox = self._outbox = Outbox()
        try:
            yield pb.LimitQuestions(gateway=self.name, uses=[self._whole(*each) for each in self._known.items()])
            while self._outbox is outbox and not is_over():
                yield await outbox.take()
        finally:
            if self._outbox is outbox:
                self.leave()

    def leave(self) -> None:
        """End the stream of the operator that counts, if there is one; what was asked is judged here."""
        if self._outbox is None:
            return
        self._outbox.wake()
        self._outbox = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_OperatorLost())

    def answer(self, answers: pb.LimitAnswers) -> None:
        """Take what the operator says."""
        self._num_gateways = max(1, answers.num_gateways or self._num_gateways)
        for each in answers.answers:
            waiting = self._waiting.pop(each.id, None)
            if waiting and not waiting.done():
                waiting.set_result(each)

    async def _judge(self, key: ApiKey, known: _Known, asked: Use) -> Verdict:
        if self._outbox:
            answered = await self._ask(self._outbox, key, asked)
            if answered:
                return answered
        known.ledger.forget(self.clock())
        clocks, mine = self._clocks(), key.quota.shared_by(self._num_gateways)
        today = known.ledger.today.use if known.ledger.today.day == clocks.day else Use()
        return judge(mine, [known.ledger], today, asked, clocks)

    async def _ask(self, outbox: Outbox, key: ApiKey, asked: Use) -> Verdict | None:
        """Return the operator's verdict, None if there is none in time."""
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        outbox.put(question(number, key, asked))
        try:
            async with asyncio.timeout(self._answer_s):
                return read_verdict(await answer)
        except (TimeoutError, _OperatorLost):
            return None
        finally:
            self._waiting.pop(number, None)

    def _still_refused(self, known: _Known, quota: Quota) -> Verdict | None:
        """Return the last refusal while it is known to hold."""
        last, passed_s = known.refused, self.clock() - known.refused_s
        if last is None or known.quota != quota or passed_s < 0:
            return None
        left_s = (last.retry_after_s if last.is_final else min(_SOON_S, last.retry_after_s)) - passed_s
        return last._replace(retry_after_s=max(left_s, last.retry_after_s - passed_s)) if left_s > 0 else None

    def _add(self, ledger: Ledger, use: Use, at_s: float) -> None:
        ledger.forget(self.clock())
        ledger.add(use, at_s=at_s, day=self._clocks().day)

    def _clocks(self) -> Clocks:
        return Clocks(self.clock(), self._wall())

    def _whole(self, name: str, known: _Known) -> pb.LimitUse:
        """Return all that a key used here."""
        now_s, (day, today) = self.clock(), known.ledger.today
        seconds = [
            pb.UsedInSecond(age_seconds=max(0.0, now_s - second), requests=use.requests, tokens=use.tokens)
            for second, use in known.ledger.seconds.items()
        ]
        used = pb.UsedOnDay(day=day, requests=today.requests, tokens=today.tokens)
        return pb.LimitUse(key=name, seconds=seconds, today=used)


class _OperatorLost(Exception):
    """Who was asked is gone."""


def headers_of(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """Return where a key stands, as OpenAI's API says it."""
    states = (("requests", verdict.requests), ("tokens", verdict.tokens))
    return tuple(
        pair
        for what, state in states
        if state
        for pair in (
            (f"x-ratelimit-limit-{what}", str(state.limit)),
            (f"x-ratelimit-remaining-{what}", str(state.remaining)),
            (f"x-ratelimit-reset-{what}", f"{state.reset_s:.3f}s"),
        )
    )


def _reached(key: ApiKey, verdict: Verdict) -> LimitReached:
    words = f"the API key {key.name} may use {verdict.words}"
    wait_s, code = verdict.retry_after_s, grpc.StatusCode.RESOURCE_EXHAUSTED
    return LimitReached(code, words, wait_s, "key_limit", headers_of(verdict))


def _counts_tokens(quota: Quota) -> bool:
    return quota.tokens_per_minute is not None or quota.tokens_per_day is not None
