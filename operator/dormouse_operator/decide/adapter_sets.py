"""Which adapters workers have to serve, and what such a set is called. Pure.

Files may change under a URI. The first digest that a worker loads of a URI is written down and is what every other
worker has to load, so that one name never means two things; another one takes a new URI, or its digest in the spec.

To those of a deployment's own spec come those that InferenceAdapters offer, the oldest first. What one of them asks for
never changes what others have, nor takes other pods: it is refused for a reason of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dormouse_operator.manifests.adapters import adapter_claims, adapter_secrets
from dormouse_operator.model import Deployment
from dormouse_operator.model.adapters import Adapter, OfferedAdapter, RecordedAdapter

_DIGEST_CHARS = 16


class Refusal(NamedTuple):
    """Why a base does not serve what an InferenceAdapter asks for."""

    reason: str
    message: str


class Merged(NamedTuple):
    """A deployment with all adapters that it has to serve, and why it does not serve others."""

    deployment: Deployment
    refusals: Mapping[str, Refusal]  # by name of the InferenceAdapter


def merge(deployment: Deployment, offers: Iterable[OfferedAdapter]) -> Merged:
    """Return the deployment with what InferenceAdapters offer."""
    taken = {each.name: each for each in deployment.adapters}
    refusals: dict[str, Refusal] = {}
    for offer in sorted(offers, key=lambda each: (each.created, each.resource)):
        if offer.wanted is None:
            refusals[offer.resource] = Refusal("InvalidSpec", offer.fault)
        elif refusal := next(_objections(deployment, offer.wanted, taken), None):
            refusals[offer.resource] = refusal
        else:
            taken[offer.wanted.name] = offer.wanted
    return Merged(replace(deployment, adapters=tuple(taken[name] for name in sorted(taken))), refusals)


def _objections(deployment: Deployment, wanted: Adapter, taken: Mapping[str, Adapter]) -> Iterator[Refusal]:
    """Yield why the base cannot serve this beside what it has already."""
    engine, base = deployment.engine, f"InferenceDeployment {deployment.key.name}"
    if not engine.enable_lora:
        yield Refusal("AdaptersOff", f"{base} serves no adapters; set its spec.engine.enableLora true")
    if wanted.name == deployment.model.served_name:
        yield Refusal("AdapterNameTaken", f"{wanted.name} is the name of the base model; set another spec.name")
    if wanted.name in taken:
        yield Refusal("AdapterNameTaken", f"{_owner(taken[wanted.name])} has the name {wanted.name}; set another")
    if wanted.claim and wanted.claim not in (mounted := adapter_claims(deployment)):
        words = f"{base} does not mount the claim {wanted.claim}, only: {', '.join(mounted) or 'none'}"
        yield Refusal("ClaimNotMounted", f"{words}; add it to its spec.adapterClaims")
    if wanted.secret and wanted.secret not in (mounted := adapter_secrets(deployment)):
        words = f"{base} does not mount the Secret {wanted.secret}, only: {', '.join(mounted) or 'none'}"
        yield Refusal("SecretNotMounted", f"{words}; add it to its spec.adapterSecrets")
    if wanted.is_fetched and deployment.parallelism.is_grouped:
        words = f"{base} is groups of several pods, for which nothing is fetched from a hub"
        yield Refusal("NotFetched", f"{words}; put the adapter into a claim (pvc://)")
    if len(taken) >= engine.adapter_places:
        words = f"{base} has {len(taken)} adapters, and its spec.engine.maxCpuLoras is {engine.adapter_places}"
        yield Refusal("NoAdapterPlace", f"{words}; raise it, or remove one")
    if wanted.is_pinned and sum(each.is_pinned for each in taken.values()) + 1 >= engine.adapter_slots:
        words = f"spec.engine.maxLoras of {base} is {engine.adapter_slots}, and one slot stays free of pins"
        yield Refusal("TooManyPins", f"{words}; raise it, or set spec.pin false")


def _owner(adapter: Adapter) -> str:
    return f"InferenceAdapter {adapter.resource}" if adapter.resource else "spec.adapters of the base"


def wanted(deployment: Deployment) -> tuple[Adapter, ...]:
    """Return what workers have to serve, each with the digest that was agreed on, if one was."""
    known = {each.name: each for each in deployment.recorded.adapters}
    return tuple(_as_agreed(each, known.get(each.name)) for each in deployment.adapters)


def _as_agreed(adapter: Adapter, known: RecordedAdapter | None) -> Adapter:
    if adapter.digest or known is None or known.uri != adapter.uri:
        return adapter
    return replace(adapter, digest=known.digest)


def digest_of(adapters: Sequence[Adapter]) -> str:
    """Return what a set of adapters is called; "" = none. Who asks for them changes nothing for a worker."""
    decisive = [
        (each.name, each.uri, each.path, each.claim, each.digest, each.is_pinned, *filter(None, [each.token]))
        for each in adapters
    ]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:_DIGEST_CHARS] if decisive else ""


def set_of(deployment: Deployment) -> str:
    """Return what the adapters of a deployment are called."""
    return digest_of(wanted(deployment))
