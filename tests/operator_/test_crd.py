"""The schema of InferenceDeployment: what it says of itself, and what a real API server refuses because of it."""

from __future__ import annotations

from typing import Any

import pytest

from dormouse_api.names import DEFAULT_MIN_PROMPT_TOKENS
from dormouse_kube.api import Kind
from dormouse_kube.errors import Conflict, Invalid, KubeError
from dormouse_operator.model import KvStore, Prewarm
from dormouse_operator.parse import parse_deployment
from tests.operator_.crds import definition, loose, nodes, served_kind
from tests.operator_.refused_specs import CUDA, POOL, REFUSED

CRD = definition("inferencedeployments")
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def test_every_field_is_described():
    nameless = [path for path, node in nodes(SCHEMA) if not node.get("description") and path != ".metadata"]
    assert nameless == []


def test_the_schema_is_structural_and_prunes_unknown_fields_but_those_of_a_pod():
    kept = [path for path, node in nodes(SCHEMA) if "x-kubernetes-preserve-unknown-fields" in node]
    assert kept == [".spec.template.spec"]
    typeless = [path for path, node in nodes(SCHEMA) if "type" not in node and "x-kubernetes-int-or-string" not in node]
    assert typeless == []


def test_everything_in_the_spec_is_bounded():
    assert loose(SCHEMA["properties"]["spec"]) == []


def test_users_see_six_columns_and_may_scale():
    shown = [column["name"] for column in VERSION["additionalPrinterColumns"] if not column.get("priority")]
    assert [name.upper() for name in shown] == ["MODEL", "PHASE", "READY", "SLEEPING", "BLOCKS", "AGE"]
    assert VERSION["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert CRD["spec"]["names"]["shortNames"] == ["infd"]


@pytest.fixture
async def served(cluster):
    """A client, and the kind as the server knows it."""
    async with served_kind(cluster, CRD) as (client, kind):
        yield client, kind


def manifest(kind: Kind, name: str = "thing", **spec: Any) -> dict[str, Any]:
    engine = {"device": "cpu", **spec.pop("engine", {})}
    body = {"model": {"uri": "pvc://models/tiny"}, "engine": engine, **spec}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": body}


@pytest.mark.cluster
async def test_the_server_refuses_bad_values_with_field_value_and_limit(served):
    client, kind = served
    quiet = []
    for spec, named in REFUSED:
        try:
            await client.create(kind, manifest(kind, **spec))
        except Invalid as error:
            missing = [word for word in named if word not in str(error)]
            quiet += [(spec, missing, str(error))] if missing else []
        else:
            quiet.append((spec, ["was accepted"], ""))
            await client.delete(kind, "default", "thing")
    assert quiet == []


@pytest.mark.cluster
@pytest.mark.parametrize(("name", "named"), [("n" * 41, "40"), ("a.b", "a-z"), ("7b", "a-z")])
async def test_the_server_refuses_names_that_children_can_not_carry(served, name, named):
    client, kind = served
    with pytest.raises(KubeError, match=named) as caught:
        await client.create(kind, manifest(kind, name))
    assert name in str(caught.value)


@pytest.mark.cluster
async def test_the_server_fills_defaults_and_accepts_good_values(served):
    client, kind = served
    made = await client.create(kind, {**manifest(kind), "spec": {"model": {"uri": "pvc://models/a/b"}}})
    assert made["spec"] == {
        "model": {"uri": "pvc://models/a/b"},
        "task": "auto",
        "replicas": 1,
        "parallelism": {"tensor": 1, "pipeline": 1, "schedulingDeadlineSeconds": 600},
        "engine": {
            "runtime": "dormouse",
            "device": "cuda",
            "dtype": "auto",
            "maxNumSeqs": 64,
            "maxNumBatchedTokens": 2048,
            "gpuMemoryUtilization": 0.9,
            "kvCacheDtype": "auto",
            "prefaultKvCache": False,
            "blockSize": 16,
            "swapSpace": 0,
            "enablePrefixCaching": True,
            "loadFormat": "auto",
            "cudaGraphs": True,
            "asyncScheduling": True,
            "toolCallParser": "auto",
            "reasoningParser": "auto",
            "quantization": "none",
            "speculation": {"method": "off", "maxTokens": 8},
            "seed": 0,
            "enableLora": False,
            "maxLoras": 1,
            "maxLoraRank": 16,
        },
        "lifecycle": {
            "desiredState": "Auto",
            "sleepLevel": 1,
            "keepHostCopy": True,
            "keepPrefixCache": False,
            "keepEncoderCache": False,
            "drainTimeoutSeconds": 60,
            "level1AfterSeconds": 600,
            "minActiveSeconds": 60,
            "holdTimeoutSeconds": 300,
            "maxHeldRequests": 1000,
            "shrinkRequests": False,
            "spareEngine": False,
            "spares": 0,
        },
        "rollout": {"strategy": "Surge", "maxSurge": "25%", "maxUnavailable": 0, "progressDeadlineSeconds": 1800},
    }
    full = {
        "model": {"uri": "file:///opt/models/tiny", "name": "org/Tiny-1.5"},
        "image": "registry/worker:1",
        "replicas": 0,
        "engine": {
            "maxModelLen": 512,
            "kvCacheMemory": "1.5Gi",
            "swapSpace": 1024,
            "gpuMemoryUtilization": 1,
            "compileSizes": [8, 1],
        },
        "resources": {"limits": {"memory": "1536Mi", "cpu": 2}, "requests": {"cpu": "50m", "memory": "0.5Gi"}},
        "lifecycle": {
            "desiredState": "Asleep",
            "level1AfterSeconds": None,
            "level2AfterSeconds": 60,
            "zeroAfterSeconds": 61,
            "prewarm": [{"cron": "45 7 * * MON-FRI"}],
        },
        "scaling": {"maxReplicas": 4, "targetKvUsage": 0.8},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"disk": "fast"}}},
    }
    good = await client.create(kind, manifest(kind, "n" * 40, **full))
    assert parse_deployment(good).engine.kv_cache_memory_bytes == 3 * 2**29
    assert parse_deployment(good).engine.compile_sizes == (1, 8)
    assert good["spec"]["template"] == full["template"]
    ladder = parse_deployment(good).lifecycle
    assert (ladder.level1_after_s, ladder.level2_after_s, ladder.zero_after_s) == (None, 60, 61)
    assert ladder.prewarm == (Prewarm("45 7 * * MON-FRI", "UTC"),)
    model = {"uri": "hf://org/Tiny-1.5", "revision": "refs/pr/1", "tokenSecretRef": {"name": "hub"}, "size": "16Gi"}
    embedder = await client.create(kind, manifest(kind, "embedder", task="embed", scaling={"maxReplicas": 2}))
    assert parse_deployment(embedder).engine.task == "embed"
    store = {"device": "cpu", "kvStore": {"size": "1.5Gi", "claimName": "kv"}}
    roles = {"replicas": 2, "roles": {"prefill": {"replicas": 1}}}
    keeper = await client.create(kind, manifest(kind, "keeper", engine=store, **roles))
    assert parse_deployment(keeper).engine.kv_store == KvStore(3 * 2**29, "kv")
    assert keeper["spec"]["roles"]["prefill"] == {"replicas": 1, "minPromptTokens": DEFAULT_MIN_PROMPT_TOKENS}
    await client.patch_scale(kind, "default", "keeper", replicas=0, field_manager="dormouse-scaler")
    drafting = {"enableLora": True, "speculation": {"method": "ngram"}}
    adapted = await client.create(kind, manifest(kind, "adapted", engine=drafting))
    assert adapted["spec"]["engine"]["speculation"] == {"method": "ngram", "maxTokens": 8}
    loaded = await client.create(kind, manifest(kind, "loaded", model=model, cache={"size": "40Gi"}))
    assert loaded["spec"]["model"]["tokenSecretRef"] == {"name": "hub", "key": "token"}
    member = await client.create(kind, manifest(kind, "member", engine=CUDA, gpu={"pool": POOL}))
    assert member["spec"]["gpu"]["pool"] == {"name": "shared", "priority": 0, "weight": 1}
    assert good["spec"]["scaling"] == {"minReplicas": 1, "maxReplicas": 4, "targetKvUsage": 0.8}


@pytest.mark.cluster
async def test_replicas_are_scaled_apart_from_the_rest_and_only_in_the_version_that_was_read(served):
    client, kind = served
    made = await client.create(kind, manifest(kind))
    version = made["metadata"]["resourceVersion"]
    scale = {"replicas": 2, "field_manager": "dormouse-scaler", "resource_version": version}
    assert (await client.patch_scale(kind, "default", "thing", **scale))["spec"] == {"replicas": 2}
    after = await client.get(kind, "default", "thing")
    assert after["spec"] == {**made["spec"], "replicas": 2}
    assert parse_deployment(after).replica_writers == ("dormouse-scaler",)
    with pytest.raises(Conflict):
        await client.patch_scale(kind, "default", "thing", **scale)
    status = {"replicas": 1, "selector": "app=thing"}
    await client.patch_status(kind, "default", "thing", status)
    again = await client.patch_scale(kind, "default", "thing", replicas=2, field_manager="dormouse-scaler")
    assert again["status"] == status, "what a HorizontalPodAutoscaler reads"
    for manager, replicas in (("kubectl", 3), ("kube-controller-manager", 2), ("kubectl", 3)):
        await client.patch_scale(kind, "default", "thing", replicas=replicas, field_manager=manager)
        after = await client.get(kind, "default", "thing")
        assert parse_deployment(after).replica_writers == (manager,), "the last one has the field for itself"
