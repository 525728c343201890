"""Every word of a resource beside every other: what the API server admits, operator and workers take, too.

Who is refused there reads why at once, and needs no look at the logs of a pod.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Invalid
from dormouse_operator.manifests import worker_arguments
from dormouse_operator.parse import SpecError, parse_deployment
from dormouse_worker.common.errors import WorkerError
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.validation import check_settings
from dormouse_worker.files.speech_files import LISTENER
from dormouse_worker.files.task_files import task_of
from dormouse_worker.front.flags.settings import parse_settings
from dormouse_worker.model.bits_rules import check_cache_dtype
from tests.faults.world import World

Spec = Mapping[str, Any]
SPOKEN = {"architectures": [LISTENER]}  # the config.json of a model that hears
PLACE = ["--master-addr=leader", "--master-port=29500"]  # what a pod of a group knows besides
HOOK = {"podLabels": {"app": "router"}}
ENGINE: list[Spec] = [
    {"device": "cuda"},
    {"runtime": "vllm"},
    {"dtype": "bfloat16"},
    {"maxNumSeqs": 1},
    {"maxNumBatchedTokens": 8},
    {"kvCacheMemory": "1Gi"},
    *({"kvCacheDtype": dtype} for dtype in ("int8", "fp8")),
    {"prefaultKvCache": True},
    {"swapSpace": "1Gi"},
    {"kvStore": {"size": "1Gi"}},
    {"enablePrefixCaching": False},
    *({"loadFormat": form} for form in ("dummy", "sharded_state")),
    *({"quantization": method} for method in ("int8", "int4")),
    *({"speculation": {"method": method}} for method in ("auto", "ngram", "suffix", "mtp")),
    *({"speculation": {"method": method, "model": "pvc://drafts/a"}} for method in ("draft", "eagle")),
    {"enableLora": True},
    {"maxLoras": 4},
    {"maxCpuLoras": 2},
    {"compileSizes": [8]},
    {"cudaGraphs": False},
    {"asyncScheduling": False},
]
LIFECYCLE: list[Spec] = [
    {"keepPrefixCache": True},
    {"keepHostCopy": False},
    {"spareEngine": True},
    {"spares": 1},
    {"shrinkRequests": True},
    {"level3AfterSeconds": 900},
    {"zeroAfterSeconds": 1900},
    *({"desiredState": state} for state in ("Asleep", "Zero", "Awake")),
    {"sleepLevel": 3},
]
WORDS: list[Spec] = [
    *({"task": task} for task in ("generate", "embed", "classify", "score", "transcribe")),
    *({"engine": words} for words in ENGINE),
    *({"lifecycle": words} for words in LIFECYCLE),
    *({"parallelism": {way: 2}} for way in ("tensor", "pipeline")),
    {"replicas": 3},
    {"image": "worker-vllm:1"},
    {"canary": {"of": "other", "weight": 5}},
    {"roles": {"prefill": {"replicas": 1}}},
    {"serving": {"inferencePool": True}},
    {"serving": {"kvEvents": {"subscribers": [HOOK]}}},
    {"scaling": {"minReplicas": 2, "maxReplicas": 4}},
    {"scaling": {"maxReplicas": 4, "targetKvUsage": 0.5}},
    {"rollout": {"strategy": "SleepSwap"}},
    {"gpu": {"pool": {"name": "shared"}}},
    {"gpu": {"resourceName": "example.com/gpu"}},
    {"adapters": [{"name": "a", "uri": "pvc://adapters/a"}]},
    {"adapters": [{"name": "a", "uri": "hf://org/a"}]},
]
BESIDE: list[Spec] = [  # without which one of these is never admitted
    {},
    {"engine": {"device": "cuda"}},
    {"engine": {"runtime": "vllm"}, "image": "worker-vllm:1"},
    {"engine": {"enableLora": True, "maxLoras": 2}},
    {"engine": {"kvStore": {"size": "1Gi"}}, "replicas": 3},
]


def joined(*specs: Spec) -> dict[str, Any]:
    """Return one spec that says what all of these say."""
    whole: dict[str, Any] = {}
    for spec in specs:
        for name, value in spec.items():
            held = whole.get(name)
            whole[name] = joined(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return whole


def check_taken(resource: Mapping[str, Any]) -> None:
    """Let the operator read what was admitted, and a worker be started with it. Raises what either of them says."""
    wanted = parse_deployment(resource)
    _, settings = parse_settings([*worker_arguments(wanted), *PLACE], {})
    if settings.runtime == "dormouse":
        check_settings(settings)
        check_task(settings)


def check_task(settings: EngineSettings) -> None:
    """Ask what a worker asks once it has read a model's files. A score needs those of a head."""
    if settings.task not in {"auto", "score"}:
        task_of(settings, SPOKEN if settings.task == "transcribe" else {})
    check_cache_dtype(settings, generates=settings.task in {"auto", "generate"}, read="")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_is_admitted_is_taken(world: World) -> None:
    refused, taken, quiet = 0, 0, []
    for beside, one, other in ((b, *pair) for b in BESIDE for pair in itertools.combinations(WORDS, 2)):
        spec = joined({"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu"}}, beside, one, other)
        try:
            await world.create("crossed", spec)
        except Invalid:
            refused += 1
            continue
        made = await world.kube.get(INFERENCE_DEPLOYMENTS, world.namespace, "crossed")
        await world.delete("crossed")
        assert made is not None
        try:
            check_taken(made)
            taken += 1
        except (SpecError, WorkerError, SystemExit) as error:
            quiet.append((joined(beside, one, other), str(error)))
    assert quiet == []
    assert min(refused, taken) > 1000
