"""What an InferenceAdapter's status says, and what is told of it. Pure.

Everything follows from its base: that takes it or refuses it, and its status says where its adapters are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dormouse_operator.decide.adapter_sets import Refusal, merge
from dormouse_operator.manifests import EventRecord
from dormouse_operator.model import AdaptersKey, Condition, Deployment
from dormouse_operator.model.adapters import OfferedAdapter, RecordedAdapter
from dormouse_operator.parse import format_time

RESOLVED, LOADED = "Resolved", "Loaded"
_NOT_TOLD = RecordedAdapter(name="", uri="", state="Announcing", message="its base has not told of it yet")
_MAX_MESSAGE = 4096


class Offered(NamedTuple):
    """An InferenceAdapter and what became of it."""

    offer: OfferedAdapter
    status: Mapping[str, Any]
    news: tuple[EventRecord, ...]  # since its recorded status


def look(
    key: AdaptersKey, base: Deployment | str | None, offers: Iterable[OfferedAdapter], now: datetime
) -> Iterator[Offered]:
    """Yield each InferenceAdapter of a base with its status. The base is None if missing, a reason if unreadable."""
    offers = tuple(offers)
    refusals, told = _judged(key, base, offers)
    for offer in offers:
        refusal = refusals.get(offer.resource)
        found = told.get(offer.resource, _NOT_TOLD)
        known = found if refusal is None and _is_about(found, offer) else _NOT_TOLD
        status = _status(offer, known, _conditions(key, offer, refusal, known), now)
        yield Offered(offer, status, tuple(_news(offer, status)))


def _judged(
    key: AdaptersKey, base: Deployment | str | None, offers: tuple[OfferedAdapter, ...]
) -> tuple[Mapping[str, Refusal], Mapping[str, RecordedAdapter]]:
    """Return why InferenceAdapters are refused, and what the base's status says of the others, by their names."""
    if isinstance(base, Deployment):
        told = {each.resource: each for each in base.recorded.adapters if each.resource}
        return merge(base, offers).refusals, told
    if base is None:
        words = f"there is no InferenceDeployment {key.name} in the namespace {key.namespace}"
        return dict.fromkeys((offer.resource for offer in offers), Refusal("BaseNotFound", words)), {}
    refusal = Refusal("BaseInvalid", f"InferenceDeployment {key.name} cannot be read: {base}")
    return dict.fromkeys((offer.resource for offer in offers), refusal), {}


def _is_about(told: RecordedAdapter, offer: OfferedAdapter) -> bool:
    wanted = offer.wanted
    return wanted is not None and (told.name, told.uri) == (wanted.name, wanted.uri)


def _conditions(
    key: AdaptersKey, offer: OfferedAdapter, refusal: Refusal | None, told: RecordedAdapter
) -> tuple[Condition, Condition]:
    if refusal:
        return (
            Condition(RESOLVED, "False", refusal.reason, refusal.message, is_failure=True),
            Condition(LOADED, "False", "NotResolved", "its base does not serve it; see the condition Resolved"),
        )
    assert offer.wanted is not None, "one that cannot be read is refused"
    resolved = Condition(RESOLVED, "True", RESOLVED, f"InferenceDeployment {key.name} serves it as {offer.wanted.name}")
    return resolved, _loaded(told)


def _loaded(told: RecordedAdapter) -> Condition:
    if told.state == LOADED:
        words = f"{told.loaded_replicas} of {told.replicas} replicas serve it"
        return Condition(LOADED, "True", LOADED, words)
    if told.state == "Failed":
        return Condition(LOADED, "False", "AdapterFailed", told.message, is_failure=True)
    return Condition(LOADED, "False", told.state, told.message)


def _status(
    offer: OfferedAdapter, told: RecordedAdapter, conditions: tuple[Condition, Condition], now: datetime
) -> dict[str, Any]:
    """Return the whole status. Keys without a value are left out."""
    resolved, _ = conditions
    written = {
        "state": told.state if resolved.is_true else "Refused",
        "name": offer.wanted.name if offer.wanted else "",
        "digest": told.digest,
        "kind": told.kind,
        "rank": told.rank,
        "virtualTokens": told.virtual_tokens,
        "slotBytes": told.slot_bytes,
    }
    counts = {"loadedReplicas": told.loaded_replicas, "replicas": told.replicas}
    return {
        "observedGeneration": offer.generation,
        **{key: value for key, value in written.items() if value},
        **counts,
        "conditions": [_write(offer, condition, now) for condition in conditions],
    }


def _write(offer: OfferedAdapter, condition: Condition, now: datetime) -> dict[str, Any]:
    """Return the condition with its times: the old one unless the status flipped."""
    before = _before(offer, condition.type)
    kept = before.get("lastTransitionTime") if before.get("status") == condition.status else None
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message[:_MAX_MESSAGE],
        "lastTransitionTime": kept or format_time(now),
        "observedGeneration": offer.generation,
    }


def _before(offer: OfferedAdapter, type_: str) -> Mapping[str, Any]:
    return next((item for item in offer.raw.get("conditions") or () if item["type"] == type_), {})


def _news(offer: OfferedAdapter, status: Mapping[str, Any]) -> Iterator[EventRecord]:
    """Yield what is worth an Event: files that are loaded for the first time, and what cannot be served. No wake is."""
    resolved, loaded = status["conditions"]
    if resolved["status"] != "True":
        yield from _failure(offer, resolved)
    elif loaded["reason"] == "AdapterFailed":
        yield from _failure(offer, loaded)
    elif loaded["status"] == "True" and _is_first(offer, status):
        yield EventRecord("Normal", LOADED, f"{loaded['message']}, sha256 {status['digest'][:12]}")


def _failure(offer: OfferedAdapter, condition: Mapping[str, Any]) -> Iterator[EventRecord]:
    if _before(offer, condition["type"]).get("reason") != condition["reason"]:
        yield EventRecord("Warning", condition["reason"], condition["message"])


def _is_first(offer: OfferedAdapter, status: Mapping[str, Any]) -> bool:
    was_failed = _before(offer, LOADED).get("reason") == "AdapterFailed"
    return was_failed or offer.raw.get("digest") != status["digest"]
