"""Adapters on workers: what each has to be told, whether it was, and what the status says of them. Pure.

A worker is told all that there shall be in one message with a digest, which it echoes: who echoes another one is told
again, in whatever state, and its gate does not open before. Loading is the worker's own affair.

Who serves and holds everything is asked no more: the status says so by the name of the set (`settled_workers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dormouse_operator.decide.actions import SetAdapters
from dormouse_operator.decide.adapter_sets import digest_of, set_of, wanted
from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import EventRecord
from dormouse_operator.model import AWAKE, Pod, Worker, WorkerState
from dormouse_operator.model.adapters import Adapter, HeldAdapter, RecordedAdapter
from dormouse_operator.parse import format_time

_MAX_MESSAGE = 1024
_MOST_NEWS = 8  # Events of one pass: each is a write
_AGAIN = timedelta(seconds=2)  # after a worker did not say what it holds: it does not tell that it would now


_Held = Mapping[str, HeldAdapter]  # of one worker, by name


class _Look(NamedTuple):
    """What one awake worker has of an adapter; None = its name is not known there."""

    pod: Pod
    held: HeldAdapter | None

    def has(self, adapter: Adapter) -> bool:
        """Return whether the worker answers for the adapter."""
        held = self.held
        is_loaded = held is not None and held.state == "LOADED" and held.path == adapter.path
        return is_loaded and held is not None and adapter.digest in {"", held.digest}


def steps(situation: Situation, pods: Iterable[Pod]) -> list[SetAdapters]:
    """Return whom to tell. Pods of other engines keep what they have."""
    if not situation.deployment.engine.enable_lora:
        return []
    adapters = wanted(situation.deployment)
    digest = digest_of(adapters)
    return [SetAdapters(pod, adapters, digest) for pod in pods if _is_to_hear(situation.worker(pod), digest)]


def _is_to_hear(worker: Worker | None, digest: str) -> bool:
    return worker is not None and not worker.is_at_rest and worker.adapters_digest != digest


def is_told(situation: Situation, pod: Pod) -> bool:
    """Return whether the worker was told of every adapter, so that it may serve."""
    worker = situation.worker(pod)
    is_current = situation.deployment.engine.enable_lora and pod.revision == situation.revision
    return not is_current or not _is_to_hear(worker, set_of(situation.deployment))


def next_question(situation: Situation) -> datetime | None:
    """Return when to ask again who told of a change of its adapters, and not of which; None where all did."""
    told = situation.observed.held_adapters
    silent = (name for name, worker in situation.workers.items() if worker.adapters_version and name not in told)
    return situation.now + _AGAIN if next(silent, None) is not None else None


def write(situation: Situation) -> list[dict[str, Any]] | None:
    """Return what the status says of each adapter; None where there are none."""
    recorded, held = {each.name: each for each in situation.deployment.recorded.adapters}, _held_by_awake(situation)
    told = [
        _write(situation, each, recorded.get(each.name), _looks(held, each.name))
        for each in wanted(situation.deployment)
    ]
    return told or None


def held_set(situation: Situation) -> str | None:
    """Return what the adapters are called that every replica awake holds; None while one does not."""
    adapters, held = wanted(situation.deployment), _held_by_awake(situation)
    is_held = all(look.has(each) for each in adapters for look in _looks(held, each.name))
    are_told = all(is_told(situation, pod) for pod, _ in held)
    return digest_of(adapters) or None if held and is_held and are_told else None


def _write(
    situation: Situation, adapter: Adapter, known: RecordedAdapter | None, looks: Sequence[_Look]
) -> dict[str, Any]:
    having = [look.held for look in looks if look.held is not None and look.has(adapter)]
    state, message = _state(situation, adapter, looks)
    kept = known if known is not None and known.uri == adapter.uri else None
    written = {
        "name": adapter.name,
        "uri": adapter.uri,
        "state": state,
        **_loaded(having[0] if having else kept),
        "message": message[:_MAX_MESSAGE],
        "since": (known.since if known else "") or format_time(situation.now),
        "resource": adapter.resource,
    }
    counts = {"loadedReplicas": len(having), "replicas": len(looks)}
    return {key: value for key, value in written.items() if value} | counts


def _loaded(known: HeldAdapter | RecordedAdapter | None) -> dict[str, Any]:
    """Return what is known of an adapter once some worker has loaded it."""
    if known is None:
        return {}
    return {
        "digest": known.digest,
        "kind": known.kind,
        "rank": known.rank,
        "virtualTokens": known.virtual_tokens,
        "slotBytes": known.slot_bytes,
    }


def news(situation: Situation) -> list[EventRecord]:
    """Return what happened to adapters since the recorded status: a replica has not got one, or all have it."""
    before = {each.name: (each.uri, each.state) for each in situation.deployment.recorded.adapters}
    told = (each for each in write(situation) or () if before.get(each["name"]) != (each["uri"], each["state"]))
    records = [record for each in told if (record := _record(each))]
    records.sort(key=lambda record: record.type == "Normal")  # warnings first
    left = len(records) - _MOST_NEWS
    more = [EventRecord("Normal", "AdaptersChanged", f"{left} more adapters came or failed")] if left > 0 else []
    return records[:_MOST_NEWS] + more


def _record(written: Mapping[str, Any]) -> EventRecord | None:
    name = written["name"]
    if written["state"] == "Failed":
        return EventRecord("Warning", "AdapterFailed", f"the adapter {name}: {written['message']}")
    if written["state"] != "Loaded":
        return None
    words = f"{written['loadedReplicas']} of {written['replicas']} replicas serve the adapter {name}"
    return EventRecord("Normal", "AdapterLoaded", f"{words}, sha256 {written['digest'][:12]}")


def _held_by_awake(situation: Situation) -> list[tuple[Pod, _Held]]:
    """Return what each worker that is awake has, of this revision."""
    pods = (pod for pod in situation.replicas if pod.revision == situation.revision)
    return [(pod, _held_by(situation, pod)) for pod in pods if situation.state(pod) in AWAKE]


def _held_by(situation: Situation, pod: Pod) -> _Held:
    worker = situation.worker(pod)
    if worker is not None and worker.is_at_rest:
        return _as_recorded(situation)
    return {each.name: each for each in situation.observed.held_adapters.get(pod.name, ())}


def _looks(held: Sequence[tuple[Pod, _Held]], name: str) -> list[_Look]:
    return [_Look(pod, adapters.get(name)) for pod, adapters in held]


def _as_recorded(situation: Situation) -> _Held:
    """Return what a worker at rest holds, which is everything that is recorded."""
    paths = {each.name: each.path for each in situation.deployment.adapters}
    return {
        known.name: HeldAdapter(
            name=known.name,
            path=paths.get(known.name, ""),
            state="LOADED",
            digest=known.digest,
            kind=known.kind,
            rank=known.rank,
            virtual_tokens=known.virtual_tokens,
            slot_bytes=known.slot_bytes,
        )
        for known in situation.deployment.recorded.adapters
    }


def _state(situation: Situation, adapter: Adapter, looks: Sequence[_Look]) -> tuple[str, str]:
    """Return where an adapter is, and why it is no further."""
    if not looks:
        return "Waiting", "it is loaded when a replica serves"
    unknowing = [look.pod for look in looks if look.held is None and _serves(situation, look.pod)]
    if unknowing:
        return "Announcing", f"{unknowing[0].name} serves and is being told of it"
    missing = [look for look in looks if not look.has(adapter)]
    if not missing:
        return "Loaded", ""
    failed = [(look.pod, look.held.failure) for look in missing if look.held and look.held.failure]
    if failed:
        pod, words = failed[0]
        return "Failed", f"{len(missing)} of {len(looks)} replicas do not have it; {pod.name}: {words}"
    coming = next(
        (f"; {look.pod.name}: {look.held.progress}" for look in missing if look.held and look.held.progress), ""
    )
    return "Loading", f"{len(missing)} of {len(looks)} replicas load it{coming}"


def _serves(situation: Situation, pod: Pod) -> bool:
    return pod.gate_open and situation.state(pod) is WorkerState.READY
