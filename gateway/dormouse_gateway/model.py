"""The gateway's nouns: a deployment (a model that can be asked for) and an endpoint (a pod that answers for it).

Both are parsed once from what the API server says; everything else in the gateway sees only these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dormouse_api.canaries import ABORTED, try_of
from dormouse_api.names import DEFAULT_MAX_NUM_SEQS, DEFAULT_MIN_PROMPT_TOKENS, INFERENCE_PORT
from dormouse_api.short_names import Said, said_of
from dormouse_kube.api import Resource
from dormouse_kube.reflector import ObjectKey

LABEL_SERVICE = "kubernetes.io/service-name"  # on an EndpointSlice; the Service has its deployment's name
_GRPC_PORT_NAME, _HTTP_PORT_NAME = "grpc", "http"
_ANNOUNCING = "Announcing"  # state of an adapter in the status
_LEVEL = re.compile(r"at level ([123])")  # in the message of the condition Asleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The share of another deployment's requests that a deployment takes: its spec.canary."""

    of: str  # the other one's name, in the same namespace
    try_name: str = ""  # another spec is another try
    weight: int = 0  # percent of its requests, drawn by lot
    keys: frozenset[str] = frozenset()  # InferenceKeys, NAMESPACE/NAME, whose requests all come
    is_paused: bool = False
    max_error_percent: int = 5  # so many more requests may fail here than there
    max_ttft_percent: int = 300  # of the other's time to the first token; 0 = any
    is_aborted: bool = False  # the operator says so of this try


@dataclass(frozen=True, kw_only=True)  # no slots: defaults are read from the class
class Deployment:
    """One InferenceDeployment as far as routing needs it."""

    key: ObjectKey
    uid: str
    created: str  # RFC 3339 in UTC: sorts by time
    model_name: str  # spec.model.name, else the object's name; the name under which its workers know themselves
    desired_state: str = "Auto"
    replicas: int = 1
    phase: str = ""  # status.phase; empty until the operator wrote one
    reason: str = ""  # of the condition that says why it is not ready
    message: str = ""
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS  # spec.engine.maxNumSeqs: what one worker computes at a time
    hold_timeout_s: float = 300.0  # spec.lifecycle.holdTimeoutSeconds; 0 = requests are not held
    max_held: int = 1000  # spec.lifecycle.maxHeldRequests, per gateway
    name_said: Said = Said.NOTHING  # what the operator says of its model name
    pods: Mapping[str, str] | None = field(default_factory=dict, hash=False)  # what the operator made: UID → revision
    roles: Mapping[str, str] = field(default_factory=dict, hash=False)  # of these: UID → prefill or decode
    min_prefill_tokens: int = DEFAULT_MIN_PROMPT_TOKENS  # of prompts computed apart: spec.roles.prefill.minPromptTokens
    is_scaled: bool = False  # spec.scaling: the operator writes its replicas
    has_http: bool = False  # spec.serving.inferencePool: its workers also serve HTTP, behind others' gateways
    sleep_level: int = 0  # while it is asleep: how deep; 0 = not known, or not asleep
    # names of the LoRA adapters that its workers serve beside the base, and since when (RFC 3339) each has been there
    adapters: Mapping[str, str] = field(default_factory=dict, hash=False)
    canary: Canary | None = None  # it takes a share of another one's requests

    @property
    def full_name(self) -> str:
        """Return namespace/name, under which the model always answers."""
        return f"{self.key.namespace}/{self.key.name}"


@dataclass(frozen=True, slots=True)
class Meant:
    """What a model's name means: a deployment, and one of its adapters or, with "", its base model."""

    deployment: Deployment
    adapter: str = ""

    @property
    def worker_name(self) -> str:
        """Return the name by which the deployment's workers know it."""
        return self.adapter or self.deployment.model_name


@dataclass(frozen=True, slots=True)
class EndpointId:
    """A pod at an address. A pod that gets another address, or an address another pod, is another endpoint."""

    pod_uid: str
    address: str  # host:port, IPv6 in brackets


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running pod of a deployment that can be called."""

    id: EndpointId
    pod: ObjectKey
    deployment: ObjectKey
    ready: bool  # as the pod's condition Ready, which includes our readiness gate: it may be given Generate
    revision: str = ""  # of the engine: model, dtype, quantization, parallelism; "" = not known
    model_digest: str = ""  # of the files that the worker read, as it says itself; "" = it has not yet
    resumes: bool = True  # goes on with others' streams; False = it says that it does not
    role: str = ""  # prefill or decode, where its deployment has roles
    http_port: int = 0  # where it serves HTTP to who was let in by a gateway; 0 = nowhere
    openings: int = field(default=0, compare=False)  # how often the worker told that it takes requests again

    @property
    def http_address(self) -> str:
        """Return host:port of its HTTP API."""
        return f"{self.id.address.rpartition(':')[0]}:{self.http_port}"

    def serves_http(self, allowed: frozenset[str] | None) -> bool:
        """Return whether it serves HTTP, at one of the allowed addresses; None = at any."""
        return bool(self.http_port) and (allowed is None or self.http_address in allowed)

    def runs_the_same(self, other: Endpoint) -> bool:
        """Return whether one's streams may go on at the other: same revision and, as far as it is known, same files.

        Both have to go on with others' streams: engines of others begin anew.

        A revision whose model is a moving name (a branch of a hub) can mean other files for a pod that came later.
        """
        is_known = bool(self.model_digest and other.model_digest)
        is_same_model = self.model_digest == other.model_digest or not is_known
        is_same = bool(self.revision) and self.revision == other.revision and is_same_model
        return is_same and self.resumes and other.resumes


def parse_deployment(obj: Resource) -> Deployment:
    """Read an InferenceDeployment. Raises KeyError, TypeError or ValueError if it is not one."""
    metadata, spec = obj["metadata"], obj["spec"]
    model_name = spec["model"].get("name") or metadata["name"]
    status = obj.get("status") or {}
    culprit = _culprit(status.get("conditions") or ())
    asleep = _condition(status.get("conditions") or (), "Asleep")
    is_asleep = asleep.get("status") == "True"
    level = _LEVEL.search(asleep.get("message") or "") if is_asleep else None
    lifecycle, prefill = spec.get("lifecycle") or {}, (spec.get("roles") or {}).get("prefill") or {}
    return Deployment(
        key=ObjectKey(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        created=metadata["creationTimestamp"],
        model_name=model_name,
        desired_state=lifecycle.get("desiredState") or "Auto",
        replicas=int(spec.get("replicas", 1)),
        phase=status.get("phase") or "",
        reason=culprit.get("reason") or "",
        message=culprit.get("message") or "",
        max_num_seqs=int((spec.get("engine") or {}).get("maxNumSeqs", Deployment.max_num_seqs)),
        hold_timeout_s=float(lifecycle.get("holdTimeoutSeconds", Deployment.hold_timeout_s)),
        max_held=int(lifecycle.get("maxHeldRequests", Deployment.max_held)),
        name_said=said_of(status, model_name),
        pods=_own_pods(status),
        roles={pod["uid"]: pod["role"] for pod in status.get("pods") or () if pod.get("role")},
        min_prefill_tokens=int(prefill.get("minPromptTokens", Deployment.min_prefill_tokens)),
        is_scaled=bool(spec.get("scaling")),
        has_http=bool((spec.get("serving") or {}).get("inferencePool")),
        sleep_level=int(level[1]) if level else 0,
        adapters=_adapters(obj),
        canary=_canary(obj),
    )


def parse_slice(obj: Resource) -> tuple[ObjectKey, tuple[Endpoint, ...]]:
    """Read an EndpointSlice; return whose Service it is of, and who can be called: who has an address and does not go.

    Which revision an endpoint runs, its deployment knows. Raises KeyError, TypeError or ValueError if it is not one.
    """
    metadata = obj["metadata"]
    deployment = ObjectKey(metadata["namespace"], metadata["labels"][LABEL_SERVICE])
    ports = _Ports.of(obj.get("ports") or ())
    told = (_endpoint(deployment, item, ports) for item in obj.get("endpoints") or ())
    return deployment, tuple(endpoint for endpoint in told if endpoint)


class _Ports(NamedTuple):
    """Where the endpoints of a slice listen."""

    grpc: int
    http: int  # 0 = nowhere

    @classmethod
    def of(cls, ports: Iterable[Mapping[str, Any]]) -> _Ports:
        """Return the ports by their names; without a name for it, gRPC is where workers have it by default."""
        named = {port.get("name"): int(port["port"]) for port in ports if port.get("port")}
        return cls(named.get(_GRPC_PORT_NAME, INFERENCE_PORT), named.get(_HTTP_PORT_NAME, 0))


def _endpoint(deployment: ObjectKey, item: Mapping[str, Any], ports: _Ports) -> Endpoint | None:
    """Read one endpoint of a slice; None if it is no pod, or is on its way out."""
    conditions, pod = item.get("conditions") or {}, item.get("targetRef") or {}
    if conditions.get("terminating") or pod.get("kind") != "Pod" or not pod.get("uid") or not item["addresses"]:
        return None
    return Endpoint(
        id=EndpointId(pod["uid"], _host_port(item["addresses"][0], ports.grpc)),
        pod=ObjectKey(deployment.namespace, pod["name"]),
        deployment=deployment,
        ready=conditions.get("ready") is not False,  # nothing said means ready
        http_port=ports.http,
    )


def _own_pods(status: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the pods that the operator made, by UID; None where one wrote the status that does not say so yet."""
    is_older = "pods" not in status and status.get("phase") not in {None, "", "Rejected"}
    return None if is_older else {pod["uid"]: pod.get("revision") or "" for pod in status.get("pods") or ()}


def _adapters(obj: Resource) -> Mapping[str, str]:
    """Return the adapters that may be asked for: those of which every worker that serves has heard."""
    spec, status, created = obj["spec"], obj.get("status") or {}, obj["metadata"]["creationTimestamp"]
    if not status.get("phase"):  # no operator decides: see `standalone`
        return {each["name"]: created for each in spec.get("adapters") or ()}
    told = (each for each in status.get("adapters") or () if each.get("state") != _ANNOUNCING)
    return {each["name"]: each.get("since") or created for each in told}


def _canary(obj: Resource) -> Canary | None:
    """Return whose requests the deployment shares, None for nobody's."""
    spec, status, metadata = obj["spec"].get("canary"), obj.get("status") or {}, obj["metadata"]
    if not spec or spec["of"] == metadata["name"]:
        return None
    told, name = status.get("canary") or {}, try_of(obj["spec"])
    return Canary(
        of=spec["of"],
        try_name=name,
        weight=int(spec.get("weight", 0)),
        keys=frozenset(f"{metadata['namespace']}/{name}" for name in spec.get("keys") or ()),
        is_paused=bool(spec.get("paused")),
        max_error_percent=int(spec.get("maxErrorPercent", 5)),
        max_ttft_percent=int(spec.get("maxTtftPercent", 300)),
        is_aborted=told.get("state") == ABORTED and told.get("try") == name,
    )


def _culprit(conditions: Any) -> Mapping[str, Any]:
    """Return the condition that best says why a deployment does not serve: Ready, unless it is True; then Degraded."""
    ready, degraded = _condition(conditions, "Ready"), _condition(conditions, "Degraded")
    if ready.get("status") == "True":  # a model that can be woken is ready, also when its wake fails
        return degraded if degraded.get("status") == "True" else {}
    return ready


def _condition(conditions: Any, wanted: str) -> Mapping[str, Any]:
    return next((condition for condition in conditions if condition["type"] == wanted), {})


def _host_port(address: str, port: int) -> str:
    if address.startswith("/"):
        return f"unix:{address}"
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{port}"
