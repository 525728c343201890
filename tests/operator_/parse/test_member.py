"""A member of a pool: what its spec says, what its pods are known by, and which pods a change of it takes."""

from __future__ import annotations

import pytest

from dormouse_api.names import LABEL_POOL
from dormouse_operator.manifests import pod_digest_of, revision_of
from dormouse_operator.model import PoolMember
from dormouse_operator.parse import SpecError, parse_deployment, parse_pod


def deployment(pool=None, **spec):
    gpu = {"gpu": {"pool": pool}} if pool else {}
    body = {"model": {"uri": "pvc://models/tiny"}, **gpu, **spec}
    return parse_deployment({"metadata": {"namespace": "team", "name": "tiny", "uid": "u1"}, "spec": body})


def test_a_member_asks_for_no_extended_resource():
    placement = deployment({"name": "shared"}).placement
    assert placement.pool == PoolMember(name="shared", priority=0, weight=1.0)
    assert placement.gpu_resource is None
    assert deployment({"name": "a", "priority": -3, "weight": 0.5}).placement.pool == PoolMember(
        name="a", priority=-3, weight=0.5
    )
    assert deployment({"name": "a"}, engine={"device": "cpu"}).placement.pool is None


@pytest.mark.parametrize(
    ("pool", "spec", "words"),
    [
        ({"priority": 1}, {}, r"spec\.gpu\.pool\.name is missing"),
        ({"name": "a", "weight": 0}, {}, r"spec\.gpu\.pool\.weight is 0; allowed are numbers above 0 and at most 100"),
        ({"name": "a", "weight": 101}, {}, r"spec\.gpu\.pool\.weight is 101"),
        ({"name": "a"}, {"parallelism": {"pipeline": 2}}, r"spec\.parallelism\.pipeline is 2; spec\.gpu\.pool needs 1"),
        ({"name": "a"}, {"gpu": {"pool": {"name": "a"}, "resourceName": "x/y"}}, r"resourceName and spec\.gpu\.pool"),
    ],
)
def test_what_no_member_can_be_is_refused_by_name(pool, spec, words):
    with pytest.raises(SpecError, match=words):
        deployment(pool, **spec)


def test_another_pool_takes_other_pods_and_another_weight_takes_none():
    alone, member = deployment(), deployment({"name": "a"})
    heavier, elsewhere = deployment({"name": "a", "weight": 2, "priority": 1}), deployment({"name": "b"})
    assert pod_digest_of(heavier, "i") == pod_digest_of(member, "i")
    assert revision_of(heavier, "i") == revision_of(member, "i")
    assert len({pod_digest_of(each, "i") for each in (alone, member, elsewhere)}) == 3


def raw_pod(*args, claims=({"name": "gpu", "resourceClaimName": "shared-pool-3"},), **labels):
    container = {"name": "worker", "args": list(args)}
    spec = {"containers": [container], "resourceClaims": list(claims)}
    return {"metadata": {"name": "a", "uid": "u", "labels": labels}, "spec": spec}


def test_a_pod_s_slot_is_told_by_what_nobody_can_change():
    pod = parse_pod(raw_pod("--device-grants"))
    assert (pod.pool, pod.slot) == ("shared-pool", "shared-pool-3")
    relabelled = parse_pod(raw_pod("--device-grants", **{LABEL_POOL: "another"}))
    assert (relabelled.pool, relabelled.slot) == ("shared-pool", "shared-pool-3")


@pytest.mark.parametrize(
    "raw",
    [
        raw_pod(**{LABEL_POOL: "shared-pool"}),
        raw_pod("--device-grants", claims=()),
        raw_pod("--device-grants", claims=[{"name": "gpu", "resourceClaimTemplateName": "one"}]),
        raw_pod("--device-grants", claims=[{"name": "link", "resourceClaimName": "fabric"}]),
    ],
)
def test_a_pod_without_both_is_on_no_slot(raw):
    pod = parse_pod(raw)
    assert (pod.pool, pod.slot) == ("", "")
