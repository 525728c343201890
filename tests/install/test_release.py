"""What a removed release leaves, and two releases beside each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.kit import Deployments, Model, Models, wait_until_none
from tests.install.conftest import MODEL, RESOURCES, Installed, gateway

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

PLURALS = ("inferencedeployments", "gpupools", "inferenceadapters", "inferencekeys")
CRDS = [f"crd/{plural}.inference.dormouse.dev" for plural in PLURALS]
GREEDY = [5, 6, 7]


def test_an_uninstalled_release_leaves_the_crd_the_users_models_and_the_lease(installed: Callable[[], Installed]):
    mine = installed()
    deployments = Deployments(mine.cluster, mine.namespace)
    deployments.apply(MODEL, resources=RESOURCES)
    deployments.wait(MODEL, "condition=Ready", timeout_s=240)
    workers = mine.pods("worker")
    mine.uninstall()
    wait_until_none(lambda: mine.left(mine.namespace))
    prefix = f"{mine.release.name}-dormouse"
    kept = {f"lease.coordination.k8s.io/{prefix}-operator"}  # what the operator made itself
    kept |= {f"secret/{prefix}-authority", f"secret/{prefix}-gateway-identity"}
    wait_until_none(lambda: mine.left(mine.release.namespace) - kept)
    for definition in CRDS:
        assert mine.cluster.kubectl("get", definition, "-o", "name").strip()
    assert mine.cluster.get("infd", MODEL, mine.namespace)["spec"]["replicas"] == 1
    assert mine.pods("worker") == workers, "who serves goes on serving"


def test_two_releases_serve_each_its_own_namespace_and_one_survives_the_other(installed: Callable[[], Installed]):
    first, second = installed(), installed()
    served = {"one": first, "other": second}
    for name, mine in served.items():
        Deployments(mine.cluster, mine.namespace).apply(name, resources=RESOURCES)
    for name, mine in served.items():
        Deployments(mine.cluster, mine.namespace).wait(name, "condition=Ready", timeout_s=240)
    with gateway(first) as one, gateway(second) as other:
        assert Model(one, "one").greedy(GREEDY, 4) == Model(other, "other").greedy(GREEDY, 4)
        assert Models(one).refusal("other").startswith("NOT_FOUND")
        assert Models(other).refusal("one").startswith("NOT_FOUND")
    operators = first.pods("operator")
    second.uninstall()
    with gateway(first) as one:
        assert Model(one, "one").greedy(GREEDY, 4)
    assert first.pods("operator") == operators
