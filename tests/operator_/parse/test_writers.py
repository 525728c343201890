"""Who wrote replicas is read from the managers of their field, which are all that is kept of managedFields."""

from __future__ import annotations

from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_operator.parse import kept_managers, parse_deployment
from dormouse_operator.watch.cache import Cache
from tests.operator_.kit import managed

BY_KUBECTL = {"manager": "kubectl", "operation": "Update", "subresource": "scale", **managed("f:replicas")}
OTHERS = ({"manager": "kubectl-edit", **managed("f:model")}, {"manager": "dormouse-operator", "fieldsV1": None}, {})


def deployment(*managers):
    metadata = {
        "name": "tiny",
        "namespace": "team",
        "uid": "1",
        "resourceVersion": "1",
        "managedFields": list(managers),
    }
    return {"metadata": metadata, "spec": {"model": {"uri": "pvc://models/tiny"}}}


def test_those_who_own_the_field_are_its_writers():
    both = deployment(*OTHERS, BY_KUBECTL, {"manager": "argocd", **managed("f:replicas")})
    assert parse_deployment(both).replica_writers == ("argocd", "kubectl")
    assert parse_deployment(deployment(*OTHERS)).replica_writers == ()


def test_the_cache_keeps_them_and_nothing_else_of_managers():
    cache = Cache()
    stored = deployment(*OTHERS, BY_KUBECTL)
    key = cache.take(INFERENCE_DEPLOYMENTS, stored)
    kept = cache.snapshot(key).deployment
    assert parse_deployment(kept).replica_writers == ("kubectl",)
    assert kept["metadata"]["managedFields"] == kept_managers(stored["metadata"])
    assert len(kept["metadata"]["managedFields"]) == 1
