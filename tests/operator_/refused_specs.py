"""Specs that an API server refuses because of the schema, each with what the refusal names."""

from __future__ import annotations

from tests.operator_.refused_models import REFUSED_MODELS
from tests.operator_.refused_tasks import REFUSED_TASKS

CUDA = {"device": "cuda"}
OWN = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
POOL = {"name": "shared"}
STORE = {"size": "1Gi"}
ROLES = {"prefill": {"replicas": 2}}
DRAFT = "pvc://drafts/small"
TOLD = {"subscribers": [{"podLabels": {"app": "router"}}]}
WITH_VLLM = {"image": "worker-vllm:1", "engine": {"runtime": "vllm", "device": "cpu"}}
NOT_WITH_VLLM = [  # what is said beside it, and the field that the refusal names
    ({"engine": {"device": "cuda"}}, "engine.device"),
    ({"task": "embed"}, "task"),
    ({"parallelism": {"tensor": 2}}, "parallelism"),
    ({"parallelism": {"pipeline": 2}}, "parallelism"),
    ({"engine": {"loadFormat": "sharded_state"}}, "engine.loadFormat"),
    ({"engine": {"quantization": "int8"}}, "engine.quantization"),
    ({"engine": {"kvCacheDtype": "int8"}}, "engine.kvCacheDtype"),
    ({"engine": {"speculation": {"method": "ngram"}}}, "engine.speculation.method"),
    ({"engine": {"enableLora": True}}, "engine.enableLora"),
    ({"engine": {"kvStore": STORE}}, "engine.kvStore"),
    ({"serving": {"kvEvents": TOLD}}, "serving.kvEvents"),
    ({"engine": {"swapSpace": "1Gi"}}, "engine.swapSpace"),
    ({"engine": {"compileSizes": [1]}}, "engine.compileSizes"),
    ({"engine": {"prefaultKvCache": True}}, "engine.prefaultKvCache"),
    ({"lifecycle": {"keepPrefixCache": True}}, "lifecycle.keepPrefixCache"),
    ({"lifecycle": {"keepEncoderCache": True}}, "lifecycle.keepEncoderCache"),
    ({"lifecycle": {"spareEngine": True}}, "lifecycle.spareEngine"),
    ({"lifecycle": {"desiredState": "Asleep"}}, "lifecycle.sleepLevel"),
    ({"rollout": {"strategy": "SleepSwap"}}, "rollout.strategy"),
]
KEPT = {"engine": {"kvStore": STORE}, "replicas": 3}
NOT_WITH_ROLES = [  # what is said beside them
    ({"replicas": 3}, ["spec.roles needs spec.engine.kvStore"]),
    ({**KEPT, "replicas": 2}, ["spec.replicas must be above spec.roles.prefill.replicas"]),
    ({**KEPT, "scaling": {"minReplicas": 2, "maxReplicas": 4}}, ["spec.scaling.minReplicas must be above"]),
    ({**KEPT, "serving": {"inferencePool": True}}, ["spec.roles needs spec.serving.inferencePool false"]),
    ({**KEPT, "roles": {}}, ["spec.roles.prefill", "Required"]),
    ({**KEPT, "roles": {"prefill": {"replicas": 0}}}, ["spec.roles.prefill.replicas", "0", "1"]),
    ({**KEPT, "roles": {"prefill": {"replicas": 1, "minPromptTokens": 0}}}, ["minPromptTokens", "0", "1"]),
]
REFUSED = [
    ({"engine": {"runtime": "sglang"}}, ["spec.engine.runtime", "sglang", "vllm"]),
    ({"engine": WITH_VLLM["engine"]}, ["spec.image has to be one with that engine in /opt/vllm"]),
    *(
        (
            {**WITH_VLLM, **spec, "engine": {**WITH_VLLM["engine"], **spec.get("engine", {})}},
            [f"spec.{field} has to be", "where spec.engine.runtime is vllm"],
        )
        for spec, field in NOT_WITH_VLLM
    ),
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
    ({"task": "draw"}, ["spec.task", "draw", "generate", "embed", "classify", "score", "transcribe"]),
    (
        {"task": "embed", "scaling": {"maxReplicas": 2, "targetKvUsage": 0.5}},
        ["spec.scaling.targetKvUsage", "spec.task is embed, classify or score", "targetOutstandingPerReplica"],
    ),
    ({"engine": {"toolCallParser": "my parser"}}, ["spec.engine.toolCallParser", "my parser"]),
    ({"engine": {"reasoningParser": "--task"}}, ["spec.engine.reasoningParser", "--task"]),
    ({"engine": {"seed": -1}}, ["spec.engine.seed", "-1"]),
    ({"engine": {"compileSizes": [0]}}, ["spec.engine.compileSizes[0]", "0", "1"]),
    ({"engine": {"compileSizes": [2, 2]}}, ["spec.engine.compileSizes[1]", "Duplicate", "2"]),
    ({"engine": {"speculation": {"method": "draft"}}}, ["spec.engine.speculation.model is needed", "draft"]),
    ({"engine": {"speculation": {"model": DRAFT}}}, ["spec.engine.speculation.model is needed", "and only there"]),
    (
        {"engine": {"speculation": {"method": "draft", "model": "hf://a/b"}}},
        ["spec.engine.speculation.model is hf://a/b", "pvc://CLAIM/PATH"],
    ),
    (
        {"engine": {"speculation": {"method": "draft", "model": "pvc://a/../b"}}},
        ["spec.engine.speculation.model is pvc://a/../b", "must not hold .."],
    ),
    *(
        (
            {"engine": {"speculation": {"method": "draft", "model": DRAFT}}, "parallelism": {way: 2}},
            ["spec.engine.speculation.model needs spec.parallelism.tensor 1"],
        )
        for way in ("tensor", "pipeline")
    ),
    ({"engine": {"speculation": {"method": "eagle"}}}, ["spec.engine.speculation.model is needed", "eagle"]),
    *(
        (
            {"engine": {"device": "cpu", **other, "speculation": {"method": "eagle", "model": DRAFT}}},
            [
                "spec.engine.speculation.method eagle and mtp need spec.engine.device cpu",
                "spec.engine.quantization none",
            ],
        )
        for other in ({"device": "cuda"}, {"quantization": "int8"}, {"enableLora": True})
    ),
    (
        {"engine": {"device": "cuda", "speculation": {"method": "mtp"}}},
        ["spec.engine.speculation.method eagle and mtp need spec.engine.device cpu"],
    ),
    (
        {"engine": {"device": "cpu", "speculation": {"method": "mtp", "model": DRAFT}}},
        ["spec.engine.speculation.model is needed where", "and only there"],
    ),
    (
        {"engine": {"device": "cpu", "speculation": {"method": "mtp"}}, "parallelism": {"tensor": 2}},
        ["spec.engine.speculation.method mtp needs spec.parallelism.tensor 1"],
    ),
    ({"engine": {"speculation": {"method": "medusa"}}}, ["spec.engine.speculation.method", "medusa", "suffix"]),
    ({"engine": {"speculation": {"maxTokens": 65}}}, ["spec.engine.speculation.maxTokens", "65", "64"]),
    (
        {"engine": {"maxNumSeqs": 1, "speculation": {"method": "ngram"}}},
        ["spec.engine.speculation.method", "spec.engine.maxNumSeqs of at least 2"],
    ),
    ({"serving": {"kvEvents": {}}}, ["spec.serving.kvEvents.subscribers", "Required"]),
    ({"serving": {"kvEvents": {"subscribers": []}}}, ["spec.serving.kvEvents.subscribers", "at least 1"]),
    ({"serving": {"kvEvents": {"subscribers": [{}]}}}, ["spec.serving.kvEvents.subscribers[0]", "at least 1"]),
    (
        {"serving": {"kvEvents": TOLD}, "engine": {"enablePrefixCaching": False}},
        ["spec.serving.kvEvents", "enablePrefixCaching"],
    ),
    ({"serving": {"kvEvents": TOLD}, "task": "embed"}, ["spec.serving.kvEvents", "transcribe do not"]),
    ({"engine": {"kvStore": {}}}, ["spec.engine.kvStore.size", "Required"]),
    ({"engine": {"kvStore": {"size": "64Ki"}}}, ["spec.engine.kvStore.size", "64Ki"]),
    ({"engine": {"kvStore": {"size": "1Gi", "claimName": "../a"}}}, ["spec.engine.kvStore.claimName"]),
    ({"engine": {**CUDA, "kvStore": STORE}}, ["spec.engine.kvStore", "spec.engine.device cpu"]),
    ({"engine": {"enablePrefixCaching": False, "kvStore": STORE}}, ["spec.engine.kvStore", "enablePrefixCaching"]),
    ({"engine": {"kvStore": STORE}, "parallelism": {"tensor": 2}}, ["spec.engine.kvStore", "one rank"]),
    (
        {"engine": {"kvStore": STORE}, "task": "embed"},
        ["spec.engine.kvStore", "embed, classify, score and transcribe do not"],
    ),
    *((({"roles": ROLES} | spec), words) for spec, words in NOT_WITH_ROLES),
    ({"engine": {"compileSizes": [8, 2049]}}, ["spec.engine.compileSizes", "maxNumBatchedTokens, 2048"]),
    (
        {"engine": {"compileSizes": [8]}, "parallelism": {"tensor": 2}},
        ["spec.engine.compileSizes", "parallelism.tensor 1"],
    ),
    *REFUSED_MODELS,
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
        {"lifecycle": {"spares": 1}, "parallelism": {"pipeline": 2}},
        ["spec.lifecycle.spares needs spec.parallelism.pipeline 1"],
    ),
    (
        {"lifecycle": {"spares": 1}, "gpu": {"pool": {"name": "p"}}, "engine": {"device": "cuda"}},
        ["spec.lifecycle.spares cannot be set beside spec.gpu.pool"],
    ),
    ({"lifecycle": {"spares": -1}}, ["spec.lifecycle.spares", "-1", "0"]),
    (
        {"lifecycle": {"spareEngine": True}, "parallelism": {"tensor": 2}},
        ["spec.lifecycle.spareEngine needs spec.parallelism.tensor 1 and spec.parallelism.pipeline 1"],
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
            ({}, [{"name": "a", "uri": "hf://a"}], ["spec.adapters uri is hf://a; allowed are hf://ORG/NAME"]),
            ({}, [{"name": "a", "uri": "hf://a/b@../x"}], ["spec.adapters uri is hf://a/b@../x"]),
            ({}, [{"name": "a", "tokenSecretRef": {"name": "s"}}], ["tokenSecretRef is for hf:// only"]),
            ({}, [{"name": "a", "uri": "hf://a/b", "tokenSecretRef": {"name": "S"}}], ["tokenSecretRef.name", "S"]),
            ({}, [{"name": "a", "uri": "pvc://c/../x"}], ["spec.adapters uri is pvc://c/../x", "must not hold .."]),
            ({}, [{"name": "a", "digest": "AB"}], ["spec.adapters[0].digest", "AB"]),
            ({"maxCpuLoras": 1}, [], ["spec.engine.maxCpuLoras is 1", "maxLoras, 2"]),
            ({"compileSizes": [8]}, [], ["spec.engine.enableLora cannot be set beside spec.engine.compileSizes"]),
        ]
    ],
    (
        {
            "engine": {"enableLora": True},
            "adapters": [{"name": "a", "uri": "hf://a/b"}],
            "parallelism": {"pipeline": 2},
        },
        ["spec.adapters has a uri of hf://, which is not fetched for groups of several pods"],
    ),
    *REFUSED_TASKS,
    ({"lifecycle": {"holdTimeoutSeconds": -1}}, ["spec.lifecycle.holdTimeoutSeconds", "-1", "0"]),
    ({"lifecycle": {"maxHeldRequests": 1000001}}, ["spec.lifecycle.maxHeldRequests", "1000001", "1000000"]),
]
