"""The schema of InferenceDeployment: what it says of itself, and what a real API server refuses because of it."""

from __future__ import annotations

from typing import Any

import pytest

from dormouse_kube.api import Kind
from dormouse_kube.errors import Conflict, Invalid, KubeError
from dormouse_operator.model import KvStore, Prewarm
from dormouse_operator.parse import parse_deployment
from tests.operator_.crds import definition, loose, nodes, served_kind

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


# --- on a real API server, under a group of the test's own, so that an installed release is not disturbed ---


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


CUDA = {"device": "cuda"}
OWN = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
POOL = {"name": "shared"}
STORE = {"size": "1Gi"}
REFUSED = [
    ({"replicas": -1}, ["spec.replicas", "-1", "0"]),
    ({"engine": {"maxModelLen": 0}}, ["spec.engine.maxModelLen", "0", "1"]),
    ({"engine": {"maxNumSeqs": -4}}, ["spec.engine.maxNumSeqs", "-4", "1"]),
    ({"engine": {"maxNumBatchedTokens": 0}}, ["spec.engine.maxNumBatchedTokens", "1"]),
    ({"engine": {"blockSize": 0}}, ["spec.engine.blockSize", "0", "256"]),
    ({"engine": {"blockSize": 24}}, ["spec.engine.blockSize", "24", "16"]),
    ({"engine": {"kvCacheMemory": "-1Gi"}}, ["spec.engine.kvCacheMemory", "-1Gi"]),
    ({"engine": {"kvCacheMemory": -5}}, ["spec.engine.kvCacheMemory", "-5"]),
    ({"engine": {"kvCacheMemory": "0"}}, ["spec.engine.kvCacheMemory"]),
    ({"engine": {"swapSpace": "1GB"}}, ["spec.engine.swapSpace", "1GB"]),
    ({"engine": {"gpuMemoryUtilization": 1.5}}, ["spec.engine.gpuMemoryUtilization", "1.5", "1"]),
    ({"engine": {"gpuMemoryUtilization": 0}}, ["spec.engine.gpuMemoryUtilization", "0"]),
    ({"engine": {"device": "tpu"}}, ["spec.engine.device", "tpu", "cpu"]),
    ({"engine": {"dtype": "int3"}}, ["spec.engine.dtype", "int3", "bfloat16"]),
    ({"task": "transcribe"}, ["spec.task", "transcribe", "generate", "embed", "classify", "score"]),
    (
        {"task": "embed", "scaling": {"maxReplicas": 2, "targetKvUsage": 0.5}},
        ["spec.scaling.targetKvUsage", "spec.task is embed, classify or score", "targetOutstandingPerReplica"],
    ),
    ({"engine": {"toolCallParser": "hermse"}}, ["spec.engine.toolCallParser", "hermse", "hermes", "none"]),
    ({"engine": {"seed": -1}}, ["spec.engine.seed", "-1"]),
    ({"engine": {"compileSizes": [0]}}, ["spec.engine.compileSizes[0]", "0", "1"]),
    ({"engine": {"compileSizes": [2, 2]}}, ["spec.engine.compileSizes[1]", "Duplicate", "2"]),
    ({"engine": {"speculation": {"method": "suffixes"}}}, ["spec.engine.speculation.method", "suffixes", "ngram"]),
    ({"engine": {"speculation": {"maxTokens": 65}}}, ["spec.engine.speculation.maxTokens", "65", "64"]),
    (
        {"engine": {"maxNumSeqs": 1, "speculation": {"method": "ngram"}}},
        ["spec.engine.speculation.method", "spec.engine.maxNumSeqs of at least 2"],
    ),
    ({"engine": {"kvStore": {}}}, ["spec.engine.kvStore.size", "Required"]),
    ({"engine": {"kvStore": {"size": "64Ki"}}}, ["spec.engine.kvStore.size", "64Ki"]),
    ({"engine": {"kvStore": {"size": "1Gi", "claimName": "../a"}}}, ["spec.engine.kvStore.claimName"]),
    ({"engine": {**CUDA, "kvStore": STORE}}, ["spec.engine.kvStore", "spec.engine.device cpu"]),
    ({"engine": {"enablePrefixCaching": False, "kvStore": STORE}}, ["spec.engine.kvStore", "enablePrefixCaching"]),
    (
        {"engine": {"speculation": {"method": "ngram"}, "kvStore": STORE}},
        ["spec.engine.kvStore", "spec.engine.speculation.method off"],
    ),
    ({"engine": {"kvStore": STORE}, "parallelism": {"tensor": 2}}, ["spec.engine.kvStore", "one rank"]),
    ({"engine": {"kvStore": STORE}, "task": "embed"}, ["spec.engine.kvStore", "embed, classify and score have none"]),
    ({"engine": {"compileSizes": [8, 2049]}}, ["spec.engine.compileSizes", "maxNumBatchedTokens, 2048"]),
    (
        {"engine": {"compileSizes": [8]}, "parallelism": {"tensor": 2}},
        ["spec.engine.compileSizes", "parallelism.tensor 1"],
    ),
    ({"model": {"uri": "s3://bucket/model"}}, ["spec.model.uri", "s3://bucket/model", "pvc://", "file:///"]),
    ({"model": {"uri": "file://relative"}}, ["spec.model.uri", "file:///"]),
    ({"model": {"uri": "pvc://models/../secrets"}}, ["spec.model.uri", ".."]),
    ({"model": {}}, ["spec.model.uri", "Required"]),
    ({"model": {"uri": "hf://only-a-name"}}, ["spec.model.uri", "hf://only-a-name", "hf://ORG/NAME"]),
    ({"model": {"uri": "hf://a/b/c"}}, ["spec.model.uri", "hf://a/b/c", "hf://ORG/NAME"]),
    ({"model": {"uri": "hf://a/b", "revision": "-x"}}, ["spec.model.revision", "-x"]),
    ({"model": {"uri": "pvc://a/b", "revision": "main"}}, ["spec.model.revision", "hf://"]),
    ({"model": {"uri": "pvc://a/b", "tokenSecretRef": {"name": "a"}}}, ["spec.model.tokenSecretRef", "hf://"]),
    ({"model": {"uri": "hf://a/b", "tokenSecretRef": {}}}, ["spec.model.tokenSecretRef.name", "Required"]),
    ({"model": {"uri": "file:///a", "size": "16GB"}}, ["spec.model.size", "16GB"]),
    ({"cache": {"size": "1Gi"}}, ["spec.cache", "hf://ORG/NAME"]),
    ({"model": {"uri": "hf://a/b"}, "cache": {}}, ["spec.cache", "claimName", "size"]),
    ({"model": {"uri": "hf://a/b"}, "cache": {"size": "1Gi", "claimName": "c"}}, ["spec.cache", "exactly one"]),
    (
        {"model": {"uri": "hf://a/b"}, "cache": {"claimName": "c", "storageClassName": "s"}},
        ["spec.cache.storageClassName", "spec.cache.size"],
    ),
    ({"template": {"spec": "x"}}, ["spec.template.spec", "object"]),
    ({"template": {"metadata": {"name": "x"}}}, ["unknown field", "spec.template.metadata.name"]),
    ({"template": {"metadata": {"labels": {"a": 1}}}}, ["spec.template.metadata.labels", "string"]),
    ({"gpu": {"resourceName": "nvidia.com/gpu"}}, ["spec.gpu", "cpu", "cuda"]),
    ({"engine": CUDA, "gpu": {"claims": []}}, ["spec.gpu.claims", "at least 1"]),
    ({"engine": CUDA, "gpu": {"claims": [{"name": "gpu"}]}}, ["spec.gpu.claims[0]", "exactly one of"]),
    (
        {"engine": CUDA, "gpu": {"claims": [{**OWN, "resourceClaimName": "b"}]}},
        ["spec.gpu.claims[0]", "exactly one of"],
    ),
    ({"engine": CUDA, "gpu": {"claims": [OWN, OWN]}}, ["spec.gpu.claims[1]", "Duplicate"]),
    ({"engine": CUDA, "gpu": {"claims": [OWN], "resourceName": "a.b/c"}}, ["spec.gpu.claims", "both set"]),
    ({"engine": CUDA, "gpu": {"claims": [OWN], "pool": POOL}}, ["spec.gpu.pool", "spec.gpu.claims are both set"]),
    ({"engine": CUDA, "gpu": {"resourceName": "a.b/c", "pool": POOL}}, ["spec.gpu.pool", "resourceName are both set"]),
    ({"engine": CUDA, "gpu": {"pool": {}}}, ["spec.gpu.pool.name", "Required"]),
    ({"engine": CUDA, "gpu": {"pool": {"name": "team/shared"}}}, ["spec.gpu.pool.name", "team/shared"]),
    ({"engine": CUDA, "gpu": {"pool": {**POOL, "namespace": "b"}}}, ["unknown field", "spec.gpu.pool.namespace"]),
    ({"engine": CUDA, "gpu": {"pool": {**POOL, "weight": 0}}}, ["spec.gpu.pool.weight", "0"]),
    ({"engine": CUDA, "gpu": {"pool": {**POOL, "priority": 1001}}}, ["spec.gpu.pool.priority", "1001", "1000"]),
    (
        {"engine": CUDA, "gpu": {"pool": POOL}, "parallelism": {"pipeline": 2}},
        ["spec.parallelism.pipeline", "spec.gpu.pool needs spec.parallelism.pipeline 1", "set it to 1"],
    ),
    ({"engine": {"maxModelLength": 12}}, ["unknown field", "spec.engine.maxModelLength"]),
    ({"replica": 2}, ["unknown field", "spec.replica"]),
    ({"resources": {"limits": {"memory": "lots"}}}, ["spec.resources.limits.memory", "lots"]),
    ({"lifecycle": {"desiredState": "Sleepy"}}, ["spec.lifecycle.desiredState", "Sleepy", "Asleep"]),
    ({"lifecycle": {"sleepLevel": 4}}, ["spec.lifecycle.sleepLevel", "4"]),
    ({"scaling": {}}, ["spec.scaling.maxReplicas", "Required"]),
    ({"scaling": {"minReplicas": 0, "maxReplicas": 2}}, ["spec.scaling.minReplicas", "0", "1"]),
    ({"scaling": {"minReplicas": 3, "maxReplicas": 2}}, ["spec.scaling.minReplicas is 3", "maxReplicas, 2"]),
    ({"scaling": {"maxReplicas": 1001}}, ["spec.scaling.maxReplicas", "1001", "1000"]),
    ({"scaling": {"maxReplicas": 2, "targetKvUsage": 0}}, ["spec.scaling.targetKvUsage", "0"]),
    ({"scaling": {"maxReplicas": 2, "targetKvUsage": 1.5}}, ["spec.scaling.targetKvUsage", "1.5", "1"]),
    ({"scaling": {"maxReplicas": 2, "targetOutstandingPerReplica": 0}}, ["targetOutstandingPerReplica", "0", "1"]),
    ({"rollout": {"strategy": "Blue"}}, ["spec.rollout.strategy", "Blue", "SleepSwap"]),
    ({"rollout": {"maxSurge": "101%"}}, ["spec.rollout.maxSurge", "101%"]),
    ({"rollout": {"maxUnavailable": -1}}, ["spec.rollout.maxUnavailable", "-1", "0"]),
    ({"rollout": {"progressDeadlineSeconds": 0}}, ["spec.rollout.progressDeadlineSeconds", "0", "1"]),
    ({"lifecycle": {"level1AfterSeconds": 0}}, ["spec.lifecycle.level1AfterSeconds", "0", "1"]),
    (
        {"lifecycle": {"level2AfterSeconds": 600}},
        ["spec.lifecycle.level2AfterSeconds is 600", "level1AfterSeconds, 600"],
    ),
    (
        {"lifecycle": {"level1AfterSeconds": None, "level2AfterSeconds": 9, "zeroAfterSeconds": 8}},
        ["spec.lifecycle.zeroAfterSeconds is 8", "level2AfterSeconds, 9"],
    ),
    (
        {"lifecycle": {"level1AfterSeconds": 9, "level3AfterSeconds": 9}},
        ["spec.lifecycle.level3AfterSeconds is 9", "level1AfterSeconds, 9"],
    ),
    (
        {"lifecycle": {"level1AfterSeconds": None, "level2AfterSeconds": 9, "level3AfterSeconds": 8}},
        ["spec.lifecycle.level3AfterSeconds is 8", "level2AfterSeconds, 9"],
    ),
    (
        {"lifecycle": {"level1AfterSeconds": None, "level3AfterSeconds": 9, "zeroAfterSeconds": 8}},
        ["spec.lifecycle.zeroAfterSeconds is 8", "level3AfterSeconds, 9"],
    ),
    (
        {"lifecycle": {"level3AfterSeconds": 900}, "parallelism": {"pipeline": 2}},
        ["spec.lifecycle.level3AfterSeconds needs spec.parallelism.pipeline 1"],
    ),
    (
        {"lifecycle": {"sleepLevel": 3}, "parallelism": {"pipeline": 2}},
        ["spec.lifecycle.sleepLevel 3 needs spec.parallelism.pipeline 1"],
    ),
    (
        {"lifecycle": {"level1AfterSeconds": 9, "level2AfterSeconds": None, "zeroAfterSeconds": 8}},
        ["spec.lifecycle.zeroAfterSeconds is 8", "level1AfterSeconds, 9"],
    ),
    ({"lifecycle": {"minActiveSeconds": -1}}, ["spec.lifecycle.minActiveSeconds", "-1", "0"]),
    ({"lifecycle": {"prewarm": [{"cron": "* * * *"}]}}, ["spec.lifecycle.prewarm[0].cron", "* * * *"]),
    ({"lifecycle": {"prewarm": [{"timeZone": "UTC"}]}}, ["spec.lifecycle.prewarm[0].cron", "Required"]),
    (
        {"lifecycle": {"prewarm": [{"cron": "0 0 * * *", "timeZone": "../x"}]}},
        ["spec.lifecycle.prewarm[0].timeZone", "../x"],
    ),
    ({"lifecycle": {"drainTimeoutSeconds": -1}}, ["spec.lifecycle.drainTimeoutSeconds", "-1", "0"]),
    *[
        (
            {
                "engine": {"enableLora": True, "maxLoras": 2, **engine},
                "adapters": [{"uri": "file:///a", **each} for each in adapters],
            },
            named,
        )
        for engine, adapters, named in [
            ({"enableLora": False}, [{"name": "a"}], ["spec.adapters needs spec.engine.enableLora true"]),
            ({}, [{"name": "a"}, {"name": "a"}], ["spec.adapters[1]", "Duplicate"]),
            ({}, [{"name": n} for n in "abc"], ["spec.adapters has more adapters than spec.engine.maxCpuLoras"]),
            ({}, [{"name": n, "pin": True} for n in "ab"], ["spec.adapters pins as many", "spec.engine.maxLoras"]),
            ({}, [{"name": "a b"}], ["spec.adapters[0].name", "a b"]),
            ({}, [{"name": "a", "uri": "hf://a/b"}], ["spec.adapters uri is hf://a/b; allowed are pvc://"]),
            ({}, [{"name": "a", "uri": "pvc://c/../x"}], ["spec.adapters uri is pvc://c/../x", "must not hold .."]),
            ({}, [{"name": "a", "digest": "AB"}], ["spec.adapters[0].digest", "AB"]),
            ({"maxCpuLoras": 1}, [], ["spec.engine.maxCpuLoras is 1", "maxLoras, 2"]),
            ({"compileSizes": [8]}, [], ["spec.engine.enableLora cannot be set beside spec.engine.compileSizes"]),
            ({"quantization": "int8"}, [], ["spec.engine.enableLora cannot be set beside spec.engine.quantization"]),
        ]
    ],
    ({"engine": {"enableLora": True}, "parallelism": {"tensor": 2}}, ["enableLora needs spec.parallelism.tensor 1"]),
    *[
        (
            {"engine": {"speculation": {"method": "auto"}}, "task": task},
            ["spec.engine.speculation.method needs a model that makes text"],
        )
        for task in ("embed", "classify", "score")
    ],
    ({"engine": {"enableLora": True}, "task": "embed"}, ["spec.engine.enableLora needs a model that makes text"]),
    ({"lifecycle": {"holdTimeoutSeconds": -1}}, ["spec.lifecycle.holdTimeoutSeconds", "-1", "0"]),
    ({"lifecycle": {"maxHeldRequests": 1000001}}, ["spec.lifecycle.maxHeldRequests", "1000001", "1000000"]),
]


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
            "device": "cuda",
            "dtype": "auto",
            "maxNumSeqs": 64,
            "maxNumBatchedTokens": 2048,
            "gpuMemoryUtilization": 0.9,
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
            "drainTimeoutSeconds": 60,
            "level1AfterSeconds": 600,
            "minActiveSeconds": 60,
            "holdTimeoutSeconds": 300,
            "maxHeldRequests": 1000,
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
    keeper = await client.create(kind, manifest(kind, "keeper", engine=store))
    assert parse_deployment(keeper).engine.kv_store == KvStore(3 * 2**29, "kv")
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
    writers = [entry["manager"] for entry in after["metadata"]["managedFields"] if "scale" in entry.values()]
    assert writers == ["dormouse-scaler"]
    with pytest.raises(Conflict):
        await client.patch_scale(kind, "default", "thing", **scale)
    status = {"replicas": 1, "selector": "app=thing"}
    await client.patch_status(kind, "default", "thing", status)
    again = await client.patch_scale(kind, "default", "thing", replicas=2, field_manager="dormouse-scaler")
    assert again["status"] == status, "what a HorizontalPodAutoscaler reads"
