"""The network policies of a real release, enforced: every way that is allowed leads somewhere, every other nowhere.

docs/install.md has the arrows. What a pod may open and what another lets in both count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kit import Deployments, wait_until, wait_until_none
from tests.install.conftest import RESOURCES, a_release
from tests.install.places import Town, a_town
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

ENGINE = {"kvCacheMemory": "32Mi"}
CALLED = ("steady", "other", "leader")  # by gateways and the operator; followers are called by nobody
METRICS = {f"{who}:8080" for who in (*CALLED, "follower", "gateway", "operator")}
NAMES = {"DNS", "DNS by UDP"}
ANYBODY = METRICS | NAMES | {"API server", "gateway:50051", "gateway:8000", "gateway's Service"}
OUTSIDE = {"stranger:443", "stranger:8443"}
HUB = {"stranger:443"}  # port 443 of anywhere
ALLOWED = {
    "neighbour": ANYBODY | OUTSIDE,
    "stranger": ANYBODY | OUTSIDE,
    "gateway": NAMES | HUB | {"API server", "steady's Service", *(f"{who}:50051" for who in CALLED)},
    "operator": NAMES | HUB | {"API server", "gateway:50052", *(f"{who}:50052" for who in CALLED)},
    "steady": NAMES | HUB,
    "other": NAMES | HUB,
    "leader": NAMES | HUB | {"follower:8080", "follower:ranks"},
    "follower": NAMES | HUB | {"leader:8080", "leader:ranks"},
}
ITSELF = ("steady", "other", "leader", "follower", "gateway", "operator", "stranger")  # nothing closes a pod to itself
NOBODY_LISTENS = {"operator:50052", "follower:50051", "follower:ranks", "steady:ranks", "other:ranks", *OUTSIDE}


@pytest.fixture(scope="module")
def town(cluster: Cluster, tiny_model: Path) -> Iterator[Town]:
    """A release as the chart's defaults make it, with two models of one pod and one of two."""
    if not cluster.local:
        pytest.skip("only of the local cluster it is known that it enforces network policies")
    with a_release(cluster, tiny_model) as mine:
        deployments = Deployments(cluster, mine.namespace)
        for name in ("steady", "other"):
            deployments.apply(name, engine=ENGINE, resources=RESOURCES)
        deployments.apply("pair", engine=ENGINE, resources=RESOURCES, parallelism={"pipeline": 2})
        for name in ("steady", "other", "pair"):
            deployments.wait(name, "condition=Ready", timeout_s=240)
        with a_town(mine) as made:
            yield made


def others(who: str, names: set[str]) -> set[str]:
    """Return the targets that are not the one who tries."""
    own = (f"{who}:", f"{who}'s Service") if who in ITSELF else ()
    return {name for name in names if not name.startswith(own)}


def test_every_way_that_is_allowed_leads_somewhere_and_every_other_nowhere(town: Town):
    found = town.found()
    passing = {who: others(who, {name for name, it in seen.items() if it != "silent"}) for who, seen in found.items()}
    assert passing == {who: others(who, names) for who, names in ALLOWED.items()}
    refused = {name for seen in found.values() for name, it in seen.items() if it == "refused"}
    assert refused <= NOBODY_LISTENS


def test_without_policies_every_way_leads_somewhere_and_with_them_again_not(town: Town):
    mine = town.installed

    def policies() -> set[str]:
        found = mine.cluster.list("networkpolicies", mine.namespace)
        return {policy["metadata"]["name"] for policy in found}

    assert policies() == {"steady", "other", "pair"}
    mine.upgrade("networkPolicy.enabled=false")
    wait_until_none(policies)
    wait_until(lambda: "silent" not in {it for seen in town.found().values() for it in seen.values()})
    mine.upgrade("networkPolicy.enabled=true")
    wait_until(lambda: policies() == {"steady", "other", "pair"})


def test_a_deployment_takes_its_policy_with_it(town: Town):
    mine = town.installed
    deployments = Deployments(mine.cluster, mine.namespace)
    name = deployments.apply("brief", resources=RESOURCES)

    def policy() -> str:
        return mine.cluster.kubectl(
            "get", "networkpolicy", name, "-n", mine.namespace, "--ignore-not-found", "-o", "name"
        )

    wait_until(policy)
    deployments.delete(name)
    wait_until_none(policy)
