"""Pod templates as people mistype them: every resource gets a verdict in words, and its neighbour is served."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.faults.judging import judge_all
from tests.faults.world import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_RESOURCES = 330
PLAIN = {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu"}, "image": "worker:1"}
VALUES: Sequence[Any] = (None, True, -1, 2**31, 1.5, "", "odd value", [], [1], {}, {"a": {"b": []}}, ["x", None])
FIELDS = (
    "nodeSelector",
    "nodeSelectr",
    "tolerations",
    "affinity",
    "volumes",
    "containers",
    "initContainers",
    "securityContext",
    "serviceAccountName",
    "priorityClassName",
    "hostNetwork",
    "terminationGracePeriodSeconds",
    "runtimeClassName",
    "imagePullSecrets",
    "topologySpreadConstraints",
    "resourceClaims",
    "$patch",
    "$setElementOrder/containers",
)
WORKER_FIELDS = ("image", "env", "resources", "volumeMounts", "ports", "command", "livenessProbe", "lifecycle", "naem")

Mistake = Callable[[random.Random], Mapping[str, Any]]


def of_the_pod(rng: random.Random) -> Mapping[str, Any]:
    """Return a template with one field of the pod that has an odd value."""
    return {"spec": {rng.choice(FIELDS): rng.choice(VALUES)}}


def of_the_container(rng: random.Random) -> Mapping[str, Any]:
    """Return a template with one field of the worker's container that has an odd value."""
    return {"spec": {"containers": [{"name": "worker", rng.choice(WORKER_FIELDS): rng.choice(VALUES)}]}}


def of_the_metadata(rng: random.Random) -> Mapping[str, Any]:
    """Return a template with labels and annotations that Kubernetes may not take."""
    key = rng.choice(["team", "bad key", "x" * 300, "app.kubernetes.io/component", "a/b/c", ""])
    value = rng.choice(["ok", "bad value!", "y" * 70, ""])
    return {"metadata": {rng.choice(["labels", "annotations"]): {key: value}}}


MISTAKES: Sequence[Mistake] = (of_the_pod, of_the_pod, of_the_container, of_the_metadata)


def mistyped(count: int, seed: int) -> list[Mapping[str, Any]]:
    """Return so many specs whose template has one odd place; the same for the same seed."""
    rng = random.Random(seed)
    return [{**PLAIN, "template": rng.choice(MISTAKES)(rng)} for _ in range(count)]


async def test_every_mistyped_template_is_explained_and_harms_nobody(world: World, seed: int) -> None:
    """What the API server takes gets a condition with a reason, or pods."""
    specs = await judge_all(world, mistyped, NUM_RESOURCES, seed)
    assert specs.judged >= NUM_RESOURCES
