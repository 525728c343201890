"""A namespace without room for a model's pods: the status says which quota or range, what was asked for, the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.kit import Deployments, Manifest
from tools.kubectl import Cluster
from tools.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TOLD = ("Scheduled", "Degraded")


def bound(kind: str, spec: Manifest) -> Manifest:
    """Return a ResourceQuota or a LimitRange."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "small"}, "spec": spec}


@pytest.fixture
def narrow(cluster: Cluster, release: Release) -> Iterator[Deployments]:
    """The second namespace of the release, in which nobody else has pods; what a test bounds there is unbound again."""
    made = Deployments(cluster, release.watch_namespaces[1])
    yield made
    for name in list(made.made):
        made.delete(name)
    cluster.kubectl("delete", "resourcequota,limitrange", "small", "-n", made.namespace, "--ignore-not-found")


def test_a_quota_and_a_limit_range_that_refuse_pods_are_told_in_parts_until_there_is_room(
    narrow: Deployments, eventually: Callable[..., Any]
) -> None:
    """The pods need not start: it is about their making."""

    def told(name: str, reason: str) -> list[str]:
        found = [narrow.condition(name, kind) for kind in TOLD]
        return [each["message"] for each in found if each.get("reason") == reason]

    quota = bound("ResourceQuota", {"hard": {"requests.memory": "384Mi", "pods": "9"}})
    narrow.cluster.apply(quota, narrow.namespace)
    narrow.apply("pair", replicas=2, model={"uri": "file:///nothing"})
    words = "ResourceQuota small: requests.memory 256Mi asked for, 256Mi of 384Mi used"
    eventually(lambda: [words in each for each in told("pair", "QuotaExceeded")] == [True, True])
    quota["spec"]["hard"]["requests.memory"] = "1Gi"
    narrow.cluster.apply(quota, narrow.namespace)
    eventually(lambda: len(narrow.pods("pair")) == 2)
    narrow.cluster.apply(
        bound("LimitRange", {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}), narrow.namespace
    )
    narrow.apply("wide", model={"uri": "file:///nothing"})
    words = "a LimitRange of the namespace: memory of each Container is at most 1Gi, but limit is 1536Mi"
    eventually(lambda: [words in each for each in told("wide", "OutsideLimitRange")] == [True, True])
    narrow.cluster.kubectl("delete", "limitrange", "small", "-n", narrow.namespace)
    eventually(lambda: narrow.pods("wide"))
