"""An InferenceDeployment's mapping → the nouns of `model.wanted`. Pure. Raises only SpecError."""

from __future__ import annotations

from dataclasses import fields

from dormouse_api.canaries import ABORTED, try_of
from dormouse_api.names import ANNOTATION_WAKE, DEFAULT_MAX_NUM_SEQS
from dormouse_operator.model import (
    Deployment,
    DeviceClaim,
    Engine,
    Key,
    KvStore,
    Parallelism,
    Placement,
    PoolMember,
    Rollout,
    Scaling,
)
from dormouse_operator.model.canary import Canary
from dormouse_operator.parse.adapters import parse_adapters, parse_names
from dormouse_operator.parse.lifecycle import parse_lifecycle, require_fitting_lifecycle
from dormouse_operator.parse.queues import with_queue
from dormouse_operator.parse.recorded import parse_status
from dormouse_operator.parse.roles import parse_roles
from dormouse_operator.parse.runtimes import require_fitting_runtime
from dormouse_operator.parse.serving import parse_serving
from dormouse_operator.parse.sources import parse_model, parse_pre_pull, parse_secret
from dormouse_operator.parse.uris import parse_uri
from dormouse_operator.parse.values import Raw, SpecError, parse_bytes
from dormouse_operator.parse.writers import parse_writers

TARGET_OUTSTANDING = DEFAULT_MAX_NUM_SEQS // 2  # per replica, where no measure is named
DRAFTS_ROOT = "/drafts"  # the claim of a draft model is mounted below it
_DEFAULT_GPU = "nvidia.com/gpu"
MOST_RANKS = 64  # along each of the two ways to share a model
MOST_WEIGHT = 100  # of a pool's member


def parse_deployment(raw: Raw) -> Deployment:
    """Return the InferenceDeployment. Raises SpecError where the schema was not enforced."""
    metadata, spec = raw["metadata"], raw["spec"]
    key = Key(metadata["namespace"], metadata["name"])
    model, engine = parse_model(spec, key.name), _parse_engine(spec)
    lifecycle = parse_lifecycle(spec.get("lifecycle") or {})
    parallelism = spec.get("parallelism") or {}
    require_fitting_lifecycle(lifecycle, parallelism, spec.get("gpu") or {})
    deployment = Deployment(
        key=key,
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        model=model,
        image=spec.get("image"),
        replicas=0 if lifecycle.desired_state == "Zero" else spec.get("replicas", 1),
        engine=engine,
        lifecycle=lifecycle,
        resources=spec.get("resources") or {},
        rollout=_parse_rollout(spec.get("rollout") or {}),
        recorded=parse_status(raw.get("status") or {}),
        placement=_parse_placement(spec, metadata.get("labels")),
        parallelism=_parse_parallelism(parallelism),
        is_deleting="deletionTimestamp" in metadata,
        scaling=_parse_scaling(spec.get("scaling")),
        adapters=parse_adapters(
            spec.get("adapters") or (),
            engine,
            model.served_name,
            is_grouped=_parse_parallelism(parallelism).is_grouped,
        ),
        adapter_claims=parse_names(spec.get("adapterClaims") or ()),
        adapter_secrets=parse_names(spec.get("adapterSecrets") or ()),
        serving=parse_serving(spec),
        roles=parse_roles(spec),
        canary=_parse_canary(raw),
        pre_pull=parse_pre_pull(spec),
        replica_writers=parse_writers(metadata),
        wake_intent=(metadata.get("annotations") or {}).get(ANNOTATION_WAKE, ""),
    )
    require_fitting_runtime(deployment)
    return deployment


def _parse_canary(raw: Raw) -> Canary | None:
    """Return whose requests it shares; what the status says of another try counts for nothing."""
    spec = raw["spec"].get("canary")
    if not spec:
        return None
    told, name = (raw.get("status") or {}).get("canary") or {}, try_of(raw["spec"])
    is_aborted = told.get("state") == ABORTED and told.get("try") == name
    return Canary(
        of=spec["of"],
        weight=spec.get("weight", 0),
        is_paused=bool(spec.get("paused")),
        try_name=name,
        aborted_as=told.get("message", ABORTED) if is_aborted else "",
    )


def _parse_placement(spec: Raw, labels: Raw | None) -> Placement:
    device, gpu = (spec.get("engine") or {}).get("device", "cuda"), spec.get("gpu") or {}
    claims = tuple(_parse_claim(claim) for claim in gpu.get("claims") or ())
    pool = _parse_member(gpu["pool"], spec) if "pool" in gpu else None
    named = [name for name in ("resourceName", "claims", "pool") if gpu.get(name)]
    if len(named) > 1:
        raise SpecError(f"spec.gpu.{' and spec.gpu.'.join(named)} are both set; remove one of them")
    has_resource = device == "cuda" and not (claims or pool)
    return Placement(
        gpu_resource=gpu.get("resourceName", _DEFAULT_GPU) if has_resource else None,
        claims=claims if device == "cuda" else (),
        pool=pool if device == "cuda" else None,
        template=with_queue(spec.get("template") or {}, labels),
    )


def _parse_member(pool: Raw, spec: Raw) -> PoolMember:
    """Return which pool the deployment is in, and what it counts for there."""
    pipeline, weight = (spec.get("parallelism") or {}).get("pipeline", 1), float(pool.get("weight", 1))
    if not pool.get("name"):
        raise SpecError("spec.gpu.pool.name is missing; it is the name of a GpuPool of the same namespace")
    if pipeline != 1:
        cure = "set it to 1 or remove spec.gpu.pool"
        raise SpecError(f"spec.parallelism.pipeline is {pipeline}; spec.gpu.pool needs 1: {cure}")
    if not 0 < weight <= MOST_WEIGHT:
        raise SpecError(f"spec.gpu.pool.weight is {weight:g}; allowed are numbers above 0 and at most {MOST_WEIGHT}")
    return PoolMember(name=pool["name"], priority=pool.get("priority", 0), weight=weight)


def _parse_claim(claim: Raw) -> DeviceClaim:
    parsed = DeviceClaim(
        name=claim["name"],
        claim=claim.get("resourceClaimName", ""),
        template=claim.get("resourceClaimTemplateName", ""),
        request=claim.get("request", ""),
    )
    if bool(parsed.claim) == bool(parsed.template):
        words = "exactly one of resourceClaimName and resourceClaimTemplateName is needed"
        raise SpecError(f"spec.gpu.claims[{parsed.name}]: {words}")
    return parsed


def _parse_parallelism(parallelism: Raw) -> Parallelism:
    """Return how many ranks share the model of a replica."""
    sizes = {name: parallelism.get(name, 1) for name in ("tensor", "pipeline")}
    for name, size in sizes.items():
        if not 1 <= size <= MOST_RANKS:
            raise SpecError(f"spec.parallelism.{name} is {size}; allowed are 1 to {MOST_RANKS}")
    return Parallelism(
        **sizes,
        topology_key=parallelism.get("topologyKey", ""),
        scheduling_deadline_s=parallelism.get("schedulingDeadlineSeconds", 600),
    )


def _parse_scaling(scaling: Raw | None) -> Scaling | None:
    """Return the bounds and measures, None if there are none: an empty mapping has no maximum and is refused."""
    if scaling is None:
        return None
    least, most = scaling.get("minReplicas", 1), scaling.get("maxReplicas")
    if most is None:
        raise SpecError("spec.scaling.maxReplicas is missing; it is needed where spec.scaling is set")
    if not 1 <= least <= most:
        raise SpecError(f"spec.scaling.minReplicas is {least}; allowed are 1 to spec.scaling.maxReplicas, {most}")
    outstanding, usage = scaling.get("targetOutstandingPerReplica"), scaling.get("targetKvUsage")
    if outstanding is None and usage is None:
        outstanding = TARGET_OUTSTANDING
    if outstanding is not None and outstanding < 1:
        raise SpecError(f"spec.scaling.targetOutstandingPerReplica is {outstanding}; the least is 1")
    if usage is not None and not 0 < usage <= 1:
        raise SpecError(f"spec.scaling.targetKvUsage is {usage}; allowed are numbers above 0 and at most 1")
    return Scaling(min_replicas=least, max_replicas=most, target_outstanding=outstanding, target_kv_usage=usage)


def _parse_rollout(rollout: Raw) -> Rollout:
    """Return the limits of a roll-out. At least one of them has to leave room for a step."""
    parsed = Rollout(
        strategy=rollout.get("strategy", "Surge"),
        max_surge=_parse_share("maxSurge", rollout.get("maxSurge", "25%")),
        max_unavailable=_parse_share("maxUnavailable", rollout.get("maxUnavailable", 0)),
        progress_deadline_s=rollout.get("progressDeadlineSeconds", 1800),
    )
    nothing = {0, "0%"}
    if parsed.strategy == "Surge" and parsed.max_surge in nothing and parsed.max_unavailable in nothing:
        raise SpecError("spec.rollout.maxSurge and spec.rollout.maxUnavailable are both 0; at least one has to be more")
    return parsed


def _parse_share(name: str, value: int | str) -> int | str:
    """Return a number of pods, or a share of them such as 25%."""
    text = str(value)
    digits = text.removesuffix("%") if isinstance(value, str) else text
    if not digits.isdecimal() or (text.endswith("%") and int(digits) > 100):
        raise SpecError(f"spec.rollout.{name} is {value!r}; allowed are 0, 1, … or 0% to 100%")
    return f"{int(digits)}%" if text.endswith("%") else int(digits)


def _parse_engine(spec: Raw) -> Engine:
    """Return how the worker is started. Task and what is kept asleep stand elsewhere in the spec."""
    lifecycle = spec.get("lifecycle") or {}
    kept = {word: lifecycle[word] for word in _KEPT_ASLEEP if word in lifecycle}
    engine = spec.get("engine") or {}
    said = {**engine, **kept, "task": spec.get("task"), **_parse_speculation(engine.get("speculation") or {})}
    values = {name: said[word] for name, word in _ENGINE_WORDS.items() if said.get(word) is not None}
    for name in values.keys() & {"kv_cache_memory_bytes", "swap_space_bytes"}:
        values[name] = parse_bytes(f"spec.engine.{_ENGINE_WORDS[name]}", values[name])
    store = _parse_kv_store(engine["kvStore"]) if "kvStore" in engine else None
    return Engine(**{**values, "compile_sizes": tuple(sorted(values.get("compile_sizes", ()))), "kv_store": store})


def _parse_speculation(drafts: Raw) -> Raw:
    """Return what is said about drafts, in words of `Engine`."""
    said = {"speculationMethod": drafts.get("method"), "numSpeculativeTokens": drafts.get("maxTokens")}
    uri = drafts.get("model")
    if uri is None:
        return said
    claim, path = parse_uri(uri, "spec.engine.speculation.model", root=DRAFTS_ROOT, plural="draft models")
    return {**said, "speculationModel": path, "speculationClaim": claim or None}


def _parse_kv_store(store: Raw) -> KvStore:
    """Return where workers keep blocks on disk. What they are not kept with is refused by the schema, and by them."""
    if "size" not in store:
        raise SpecError("spec.engine.kvStore.size is missing; it bounds what is kept on disk, for example 20Gi")
    size_bytes = parse_bytes("spec.engine.kvStore.size", store["size"])
    secret = parse_secret(store.get("encryptionKeySecretRef"), default_key="key")
    return KvStore(size_bytes, store.get("claimName", ""), secret)


def _camel_case(name: str) -> str:
    """Return a field of `Engine` as the schema spells it, which leaves the unit of sizes out."""
    first, *others = name.removesuffix("_bytes").split("_")
    return first + "".join(word.capitalize() for word in others)


_KEPT_ASLEEP = ("keepHostCopy", "keepPrefixCache", "keepEncoderCache")
_ENGINE_WORDS = {field.name: _camel_case(field.name) for field in fields(Engine)}
