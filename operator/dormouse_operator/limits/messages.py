"""What gateways ask about limits, and the answers, as messages and as nouns. Pure."""

from __future__ import annotations

import math

from dormouse_api.quotas import DayUse, Ledger, Limit, Quota, Use, Verdict
from dormouse_api.v1 import gateway_control_pb2 as pb
from dormouse_operator.limits.counter import LimitCounter


def answers_to(counter: LimitCounter, told: pb.LimitQuestions, gateway: str, now_s: float) -> list[pb.LimitAnswer]:
    """Count what a gateway tells, and answer what it asks, in this order."""
    for use in told.uses:
        if told.gateway:
            counter.restore(gateway, use.key, _ledger(use, now_s))
            continue
        for second in use.seconds:
            counter.add(gateway, use.key, Use(second.requests, second.tokens), age_s=second.age_seconds)
    return [_answer(each, gateway, counter) for each in told.questions]


def _ledger(use: pb.LimitUse, now_s: float) -> Ledger:
    seconds: dict[int, Use] = {}
    for each in use.seconds:
        second = math.floor(now_s - each.age_seconds)
        seconds[second] = seconds.get(second, Use()).plus(Use(each.requests, each.tokens))
    return Ledger(seconds, DayUse(use.today.day, Use(use.today.requests, use.today.tokens)))


def _answer(question: pb.LimitQuestion, gateway: str, counter: LimitCounter) -> pb.LimitAnswer:
    quota = Quota(
        question.requests_per_minute or None,
        question.requests_per_day or None,
        question.tokens_per_minute or None,
        question.tokens_per_day or None,
    )
    verdict = counter.ask(gateway, question.key, quota, Use(question.requests, question.tokens))
    return _message(question.id, verdict)


def _message(number: int, verdict: Verdict) -> pb.LimitAnswer:
    return pb.LimitAnswer(
        id=number,
        is_granted=verdict.is_granted,
        retry_after_seconds=verdict.retry_after_s,
        reached=verdict.words,
        is_final=verdict.is_final,
        requests=_state(verdict.requests),
        tokens=_state(verdict.tokens),
    )


def _state(limit: Limit | None) -> pb.LimitState | None:
    if limit is None:
        return None
    return pb.LimitState(limit=limit.limit, remaining=limit.remaining, reset_seconds=limit.reset_s)
