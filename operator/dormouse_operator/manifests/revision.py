"""Which pods are wanted: the digests of what decides a pod and its engine, the image it runs, its name.

Three kinds of fields, by what a change of them takes:

    another pod      images, resources, volumes, device, ranks, TLS  in `pod_digest_of` and in `revision_of`
    another engine   the model's path and name, `engine`          in `revision_of` only
    nothing          replicas, scaling, lifecycle, rollout        in neither; pods keep their drain timeout

The revision is also what a worker echoes as the digest of its settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import count
from typing import Any

from dormouse_operator.manifests.adapters import adapter_claims, adapter_secrets
from dormouse_operator.manifests.inference_pool import shared_pool
from dormouse_operator.model import Deployment, Engine, Hub, ModelSource, Placement, Pod

_DIGEST_CHARS = 8
_LATER_FIELDS = {  # unknown to an earlier release
    *(
        "runtime",
        "prefault_kv_cache",
        "compile_sizes",
        "async_scheduling",
        "tool_call_parser",
        "reasoning_parser",
        "quantization",
    ),
    *("task", "speculation_method", "num_speculative_tokens", "kv_store", "speculation_model", "speculation_claim"),
    *("enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras", "kv_cache_dtype", "keep_encoder_cache"),
}
_DEFAULTS = {field.name: field.default for field in fields(Engine)}


def revision_of(deployment: Deployment, image: str) -> str:
    """Return the digest over everything that decides a pod and its engine; another one means another engine."""
    engine = {"model": _model_part(deployment.model), "engine": _engine_part(deployment.engine)}
    return _digest({"pod": _pod_part(deployment, image), **engine})


def pod_digest_of(deployment: Deployment, image: str) -> str:
    """Return the digest over what cannot change in a pod that is there; another one means another pod."""
    return _digest(_pod_part(deployment, image))


def _engine_part(engine: Engine) -> Mapping[str, Any]:
    """Return what decides an engine, later fields only where they are set: pods of before keep their digests."""
    decisive = asdict(engine).items()
    return {name: value for name, value in decisive if name not in _LATER_FIELDS or value != _DEFAULTS[name]}


def _pod_part(deployment: Deployment, image: str) -> Mapping[str, Any]:
    """Return what decides a pod. Ranks are named only where there are several: pods of before keep their digests."""
    shared = deployment.parallelism
    ranks = {"parallelism": [shared.tensor, shared.pipeline, shared.topology_key]} if shared.num_ranks > 1 else {}
    secured = {"mutual_tls": "shared"} if deployment.mutual_tls else {}  # True was a Secret of each deployment's own
    claims, secrets = adapter_claims(deployment), adapter_secrets(deployment)
    return {
        **secured,
        "image": image,
        "claim": deployment.model.claim,
        "device": deployment.engine.device,
        "resources": deployment.resources,
        "placement": _placement_part(deployment.placement),
        "hub": _hub_part(deployment.model.hub),
        **_image_part(deployment.model),
        **ranks,
        **({"http": deployment.serving.failure_mode} if deployment.serving.inference_pool else {}),
        **({"pool_of": pool} if (pool := shared_pool(deployment)) else {}),
        **({"kv_events": True} if deployment.serving.kv_subscribers else {}),
        **({"adapter_claims": claims} if claims else {}),
        **({"adapter_secrets": secrets} if secrets else {}),
        **_store_part(deployment.engine),
        **_draft_part(deployment.engine),
    }


def _model_part(model: ModelSource) -> Mapping[str, Any]:
    """Return what decides the model, an image only where there is one: pods of before keep their digests."""
    said = {name: value for name, value in asdict(model).items() if name != "image"}
    return {**said, "hub": _hub_part(model.hub), **_image_part(model)}


def _image_part(model: ModelSource) -> Mapping[str, Any]:
    """Return what decides the image that holds the model, where there is one; see `_model_part`."""
    return {"model_image": asdict(model.image)} if model.image else {}


def _hub_part(hub: Hub | None) -> Mapping[str, Any] | None:
    """Return what decides the download, a file only where one is named: pods of before keep their digests."""
    if hub is None:
        return None
    return {name: value for name, value in asdict(hub).items() if name != "file" or value}


def _store_part(engine: Engine) -> Mapping[str, Any]:
    """Return what decides the store's volume, where there is one: pods of before keep their digests."""
    if engine.kv_store is None:
        return {}
    return {"kv_store": {name: value for name, value in asdict(engine.kv_store).items() if value is not None}}


def _draft_part(engine: Engine) -> Mapping[str, Any]:
    """Return what decides the draft model's volume, where there is one: pods of before keep their digests."""
    return {"draft_claim": engine.speculation_claim} if engine.speculation_claim else {}


def _placement_part(placement: Placement) -> Mapping[str, Any]:
    """Return what is asked of a node, claims and pool only where there are some: pods of before keep their digests.

    Of a pool its name alone: weights, and who else is in it, change no pod.
    """
    asked = asdict(placement)
    if not placement.claims:
        del asked["claims"]
    asked["pool"] = placement.pool.name if placement.pool else None
    return {name: value for name, value in asked.items() if name != "pool" or value}


def _digest(decisive: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:_DIGEST_CHARS]


def choose_image(
    deployment: Deployment, pods: Sequence[Pod], default: str, *, outdated: Collection[str] = frozenset()
) -> str:
    """Return the worker image: the user's; else one that is in use and not `outdated`; else the operator's.

    In use means that the spec did not change since, or that pods of the unchanged pod-relevant part exist:
    scaling or waking after an upgrade of the operator must not restart workers, nor must the return to an old spec.
    """
    recorded = deployment.recorded
    if deployment.image is not None:
        return deployment.image
    if recorded.image is None or recorded.image in outdated:
        return default
    if deployment.generation == recorded.observed_generation:
        return recorded.image
    running = {pod.revision for pod in pods}
    used = [recorded.image, *(image for image in _images(pods) if image not in outdated)]
    return next((image for image in used if revision_of(deployment, image) in running), default)


def _images(pods: Iterable[Pod]) -> list[str]:
    return sorted({pod.image for pod in pods if pod.image})


def pod_name(deployment: str, revision: str, index: int, taken: Collection[str] = ()) -> str:
    """Return the name of a worker pod. `taken` are names that it cannot have."""
    name = f"{deployment}-{revision}-{index}"
    if name not in taken:
        return name
    return next(other for number in count(1) if (other := f"{name}-{number}") not in taken)
