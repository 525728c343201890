"""spec.engine.kvStore becomes a volume, a mount and flags of the pod, and nothing where it is not said."""

from __future__ import annotations

import pytest

from dormouse_operator.manifests import pod_digest_of, revision_of, worker_arguments
from dormouse_operator.parse import parse_deployment
from dormouse_operator.parse.values import SpecError
from dormouse_worker.front.flags.settings import parse_settings
from tests.operator_.manifests.test_manifests import deployment, pod

GIB = 1 << 30


def spec_of(**store):
    return pod(engine={"device": "cpu", "kvStore": store})["spec"]


def kept(**store):
    return deployment(engine={"device": "cpu", "kvStore": store})


def test_without_a_claim_the_pod_has_a_volume_with_more_room_than_the_blocks_take():
    spec = spec_of(size="2Gi")
    assert spec["volumes"][-1] == {"name": "kv-store", "emptyDir": {"sizeLimit": str(2 * GIB + GIB // 8 + (16 << 20))}}
    assert spec["containers"][0]["volumeMounts"][-1] == {"name": "kv-store", "mountPath": "/var/lib/dormouse-kv"}
    assert "fsGroup" not in spec["securityContext"]


def test_a_claim_is_mounted_and_made_writable():
    spec = spec_of(size="2Gi", claimName="kv")
    assert spec["volumes"][-1] == {"name": "kv-store", "persistentVolumeClaim": {"claimName": "kv"}}
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"]


def test_the_worker_reads_from_its_flags_where_it_keeps_how_much():
    _, settings = parse_settings(worker_arguments(kept(size="1.5Gi")), {})[:2]
    assert (settings.kv_store_dir, settings.kv_store_size_bytes) == ("/var/lib/dormouse-kv/blocks", 3 * GIB // 2)


def test_the_secret_is_a_variable_of_the_worker_alone():
    container = spec_of(size="1Gi", encryptionKeySecretRef={"name": "kv-key"})["containers"][0]
    reference = {"secretKeyRef": {"name": "kv-key", "key": "key"}}
    assert {"name": "DORMOUSE_KV_STORE_KEY", "valueFrom": reference} in container["env"]
    assert not any("kv-key" in argument for argument in container["args"])
    plain = spec_of(size="1Gi")["containers"][0]
    assert "DORMOUSE_KV_STORE_KEY" not in {variable["name"] for variable in plain["env"]}


def test_another_store_is_another_pod_and_none_leaves_pods_as_they_were():
    secret = {"name": "a", "key": "b"}
    stores = (
        kept(size="1Gi"),
        kept(size="2Gi"),
        kept(size="1Gi", claimName="a"),
        kept(size="1Gi", encryptionKeySecretRef=secret),
    )
    digests = {pod_digest_of(each, "w:1") for each in stores}
    assert len(digests | {pod_digest_of(deployment(), "w:1")}) == 5
    assert revision_of(kept(size="1Gi"), "w:1") != revision_of(deployment(), "w:1")
    assert not any(argument.startswith("--kv-store") for argument in worker_arguments(deployment()))


@pytest.mark.parametrize(
    ("store", "words"), [({}, "kvStore.size is missing"), ({"size": "1GB"}, r"spec\.engine\.kvStore\.size is '1GB'")]
)
def test_where_the_schema_was_not_enforced_it_is_refused_by_name(store, words):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1"}
    spec = {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu", "kvStore": store}}
    with pytest.raises(SpecError, match=words):
        parse_deployment({"metadata": metadata, "spec": spec})
