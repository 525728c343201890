"""What the status of each InferenceKey says. Pure. Gateways decide by the same `holders` whom they let in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dormouse_api.inference_keys import InferenceKey, holders
from dormouse_api.quotas import DAY_S, DayUse, Quota, Use
from dormouse_operator.model import Condition
from dormouse_operator.parse import format_time
from dormouse_operator.parse.inference_keys import RecordedKey

VALID = "Valid"
_STATES = {VALID: VALID, "Expired": "Expired"}  # by reason; every other one is a refusal


class JudgedKey(NamedTuple):
    """An InferenceKey and what its status has to say."""

    recorded: RecordedKey
    status: Mapping[str, Any]


def judge(keys: Iterable[RecordedKey], now: datetime, used: Mapping[str, DayUse] | None = None) -> Iterator[JudgedKey]:
    """Yield every key with its status; all of the cluster have to be told, as their digests are compared.

    `used` is what keys used on a day, by full name, as far as somebody counted.
    """
    keys = tuple(keys)
    held = holders(each.key for each in keys if each.key)
    for each in keys:
        status = _status(each, _condition(each, held, now), now)
        usage = _usage(each, (used or {}).get(f"{each.namespace}/{each.name}"), now)
        yield JudgedKey(each, {**status, "usage": usage} if usage else status)


def recorded_day(recorded: RecordedKey) -> DayUse | None:
    """Return what the status says of a day's use."""
    usage: Mapping[str, Any] = recorded.status.get("usage") or {}
    if not usage:
        return None
    day = datetime.fromisoformat(f"{usage['day']}T00:00:00+00:00")
    return DayUse(int(day.timestamp() // DAY_S), Use(int(usage["requests"]), int(usage["tokens"])))


def _usage(recorded: RecordedKey, counted: DayUse | None, now: datetime) -> dict[str, Any] | None:
    """Return today's use of a key that has limits of a day: as counted, else as recorded."""
    quota = recorded.key.quota if recorded.key else Quota()
    if quota.requests_per_day is None and quota.tokens_per_day is None:
        return None
    today = int(now.timestamp() // DAY_S)
    found = next((use for use in (counted, recorded_day(recorded)) if use and use.day == today), None)
    if found is None:
        return None
    return {"day": f"{now:%Y-%m-%d}", "requests": found.use.requests, "tokens": found.use.tokens}


def next_expiry_s(keys: Iterable[RecordedKey], now: datetime) -> float | None:
    """Return in how many seconds the next key expires, None if none does."""
    times = [each.key.expires for each in keys if each.key and each.key.expires and not each.key.is_over(now)]
    return (min(times) - now).total_seconds() if times else None


def _condition(recorded: RecordedKey, held: Mapping[bytes, InferenceKey], now: datetime) -> Condition:
    key = recorded.key
    if key is None:
        return Condition(VALID, "False", "KeyInvalid", recorded.fault, is_failure=True)
    holder = held[key.digest]
    if holder is not key:
        words = f"{holder.full_name} is older and has the same digest; gateways take the key for that one"
        return Condition(VALID, "False", "DigestTaken", words, is_failure=True)
    if key.is_over(now):
        assert key.expires is not None, "what never ends is not over"
        return Condition(VALID, "False", "Expired", f"it ended at {format_time(key.expires)}")
    return Condition(VALID, "True", VALID, "gateways let its callers in")


def _status(recorded: RecordedKey, condition: Condition, now: datetime) -> dict[str, Any]:
    said: Iterable[Mapping[str, Any]] = recorded.status.get("conditions") or ()
    before: Mapping[str, Any] = next((one for one in said if one["type"] == condition.type), {})
    kept = before.get("lastTransitionTime") if before.get("status") == condition.status else None
    written = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": kept or format_time(now),
        "observedGeneration": recorded.generation,
    }
    state = _STATES.get(condition.reason, "Refused")
    return {"observedGeneration": recorded.generation, "state": state, "conditions": [written]}
