"""Which adapters workers have to serve, and what such a set is called. Pure.

Files may change under a URI. The first digest that a worker loads of a URI is written down and is what every other
worker has to load, so that one name never means two things; another one takes a new URI, or its digest in the spec.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from dormouse_operator.model import Deployment
from dormouse_operator.model.adapters import Adapter, RecordedAdapter

_DIGEST_CHARS = 16


def wanted(deployment: Deployment) -> tuple[Adapter, ...]:
    """Return what workers have to serve, each with the digest that was agreed on, if one was."""
    known = {each.name: each for each in deployment.recorded.adapters}
    return tuple(_as_agreed(each, known.get(each.name)) for each in deployment.adapters)


def _as_agreed(adapter: Adapter, known: RecordedAdapter | None) -> Adapter:
    if adapter.digest or known is None or known.uri != adapter.uri:
        return adapter
    return replace(adapter, digest=known.digest)


def digest_of(adapters: Sequence[Adapter]) -> str:
    """Return what a set of adapters is called; "" = none."""
    decisive = [asdict(each) for each in adapters]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:_DIGEST_CHARS] if decisive else ""


def set_of(deployment: Deployment) -> str:
    """Return what the adapters of a deployment are called."""
    return digest_of(wanted(deployment))
