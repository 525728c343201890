"""Which pods are wanted: the digest of what decides a pod, the image it runs, its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from dormouse_operator.model import Deployment, Pod

_REVISION_CHARS = 8


def revision_of(deployment: Deployment, image: str) -> str:
    """Return the digest over everything that decides a pod; another one means other pods."""
    decisive = {
        "model": asdict(deployment.model),
        "engine": asdict(deployment.engine),
        "image": image,
        "resources": deployment.resources,
        "placement": asdict(deployment.placement),
        "drainTimeoutSeconds": deployment.lifecycle.drain_timeout_s,
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:_REVISION_CHARS]


def choose_image(deployment: Deployment, pods: Sequence[Pod], default: str) -> str:
    """Return the worker image: the user's; else the recorded one as long as it is in use; else the operator's.

    In use means that the spec did not change since, or that pods of the unchanged pod-relevant part exist:
    scaling or waking after an upgrade of the operator must not restart workers.
    """
    recorded = deployment.recorded
    if deployment.image is not None:
        return deployment.image
    if recorded.image is None:
        return default
    is_unchanged = deployment.generation == recorded.observed_generation
    revision = revision_of(deployment, recorded.image)
    is_running = any(pod.revision == revision for pod in pods)
    return recorded.image if is_unchanged or is_running else default


def pod_name(deployment: str, revision: str, index: int) -> str:
    """Return the name of a worker pod."""
    return f"{deployment}-{revision}-{index}"
