"""A worker pod's mapping → the nouns of `model.running`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dormouse_api.names import (
    ANNOTATION_SEAL,
    COMPONENT_FOLLOWER,
    COMPONENT_WORKER,
    GROUP,
    KIND,
    LABEL_COMPONENT,
    LABEL_GROUP_SIZE,
    LABEL_LEADER_UID,
    LABEL_POD_DIGEST,
    LABEL_RANKS,
    LABEL_REPLICA,
    LABEL_REVISION,
    LABEL_WORKER_INDEX,
    READINESS_GATE,
)
from dormouse_operator.model import Container, Pod
from dormouse_operator.parse.memory import parse_memory
from dormouse_operator.parse.queues import queue_of
from dormouse_operator.parse.spec import MOST_RANKS
from dormouse_operator.parse.values import Raw, parse_time

CONTAINER = "worker"
OPERATOR_KEY = "DORMOUSE_OPERATOR_KEY"  # variable: the public key by which a worker knows the operator
_BY_DEVICE_TAINT = "DeletionByDeviceTaintManager"  # why it deletes the pods of a device that a DeviceTaintRule names
_BY_TAINT = "DeletionByTaintManager"  # why the control plane deletes a pod of a node that does not answer
DEVICE_GRANTS = "--device-grants"  # flag of workers that touch their device under a grant alone
POOL_CLAIM = "gpu"  # within the pod of a pool's member: the claim of its slot
SLOT = "DORMOUSE_POOL_SLOT"  # variable of a member's pod that is beside a reservation: its slot
SLOT_DEVICES = "DORMOUSE_POOL_DEVICES"  # beside it: the devices of the slot
DOWNLOADER = "download"  # the init container that fetches a model of a hub
MODEL_VOLUME = "model"  # within the pod: what holds the model of a claim or an image
_MOST_REPLICAS = 1000  # as the schema bounds spec.replicas


class Pods(NamedTuple):
    """The pods that can be called, and those that compute for them, by UID of their leader."""

    leaders: tuple[Pod, ...]
    followers: Mapping[str, tuple[Pod, ...]]
    foreign: tuple[str, ...] = ()  # names of those that only look like ours


class _Place(NamedTuple):
    """Where a pod is among others, as its labels count. By default nowhere: nobody wants it."""

    replica: int = -1
    num_ranks: int = 1
    group_size: int = 1
    ordinal: int = 0

    @property
    def is_possible(self) -> bool:
        """Return whether a spec can ask for it. Labels are anybody's who may edit the pod."""
        is_group = 1 <= self.group_size <= MOST_RANKS and self.ordinal < MOST_RANKS
        is_shared = 1 <= self.num_ranks <= MOST_RANKS**2
        return is_group and is_shared and self.replica < _MOST_REPLICAS and self.num_ranks % self.group_size == 0


def parse_pods(items: Iterable[Raw]) -> Pods:
    """Return a deployment's pods. What is neither worker nor follower is none of ours.

    Anybody may label a pod like one of ours: only those count that belong to an InferenceDeployment. Whether to this
    one or to one of before, the pod says itself.
    """
    leaders: list[Pod] = []
    followers: dict[str, tuple[Pod, ...]] = {}
    foreign: list[str] = []
    for raw in items:
        component = (raw["metadata"].get("labels") or {}).get(LABEL_COMPONENT)
        if component not in {COMPONENT_WORKER, COMPONENT_FOLLOWER}:
            continue
        if not _owner_of(raw):
            foreign.append(raw["metadata"]["name"])
        elif component == COMPONENT_WORKER:
            leaders.append(parse_pod(raw))
        else:
            pod = parse_pod(raw)
            followers[pod.leader_uid] = (*followers.get(pod.leader_uid, ()), pod)
    return Pods(tuple(leaders), followers, tuple(foreign))


def _owner_of(raw: Raw) -> str:
    """Return the UID of the InferenceDeployment that controls the pod, "" if none does."""
    owners = raw["metadata"].get("ownerReferences") or ()
    ours = (owner for owner in owners if owner.get("controller") and owner.get("kind") == KIND)
    return next((str(owner["uid"]) for owner in ours if owner.get("apiVersion", "").startswith(f"{GROUP}/")), "")


def parse_pod(raw: Raw) -> Pod:
    """Return a worker pod. Labels of ours that are missing, odd or out of bounds make it one that nobody wants."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels = metadata.get("labels") or {}
    place = _place_of(labels)
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    scheduled, gate = conditions.get("PodScheduled", {}), conditions.get(READINESS_GATE, {})
    target = conditions.get("DisruptionTarget", {})
    container: Raw = next((item for item in status.get("containerStatuses") or () if item["name"] == CONTAINER), {})
    is_scheduled, slot = scheduled.get("status") == "True", slot_of(raw)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        index=place.replica,
        revision=labels.get(LABEL_REVISION, ""),
        owner_uid=_owner_of(raw),
        pod_digest=labels.get(LABEL_POD_DIGEST, ""),
        image=str(_container_of(raw).get("image", "")),
        operator_key=_variable(_container_of(raw), OPERATOR_KEY),
        seal=str((metadata.get("annotations") or {}).get(ANNOTATION_SEAL, "")),
        created=parse_time(metadata.get("creationTimestamp")),
        ip=status.get("podIP", ""),
        is_scheduled=is_scheduled,
        node=(raw.get("spec") or {}).get("nodeName", ""),
        queue=queue_of(labels),
        scheduling_gates=tuple(gate["name"] for gate in (raw.get("spec") or {}).get("schedulingGates") or ()),
        unscheduled_message="" if is_scheduled else scheduled.get("message", ""),
        has_ended=status.get("phase") in {"Failed", "Succeeded"},
        end_message=status.get("message", "") or status.get("reason", ""),
        is_deleting="deletionTimestamp" in metadata,
        ends_by=parse_time(metadata.get("deletionTimestamp")),
        has_lost_node="deletionTimestamp" in metadata and target.get("reason") == _BY_TAINT,
        has_tainted_device="deletionTimestamp" in metadata and target.get("reason") == _BY_DEVICE_TAINT,
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        ready_since=parse_time(conditions.get("Ready", {}).get("lastTransitionTime")),
        gate_open=gate.get("status") == "True",
        gate_reason=gate.get("reason", ""),
        gate_since=parse_time(gate.get("lastTransitionTime")),
        container=_parse_container(status.get("containerStatuses") or (), CONTAINER),
        downloader=_parse_container(status.get("initContainerStatuses") or (), DOWNLOADER),
        num_ranks=place.num_ranks,
        group_size=place.group_size,
        ordinal=place.ordinal,
        leader_uid=labels.get(LABEL_LEADER_UID, ""),
        memory=parse_memory(raw, _container_of(raw), container),
        model_volume=_kind_of_volume(raw, MODEL_VOLUME),
        claims=tuple(_claims_of(raw)),
        pool=slot.rpartition("-")[0],
        slot=slot,
        reserved_devices=tuple(filter(None, _variable(_container_of(raw), SLOT_DEVICES).split(","))),
    )


def slot_of(raw: Raw) -> str:
    """Return the slot of a pool's member by what nobody can change: flag, and claim or variable. Labels may be."""
    if DEVICE_GRANTS not in (_container_of(raw).get("args") or ()):
        return ""
    claims = (raw.get("spec") or {}).get("resourceClaims") or ()
    names = (claim.get("resourceClaimName") for claim in claims if claim["name"] == POOL_CLAIM)
    return next((str(name) for name in names if name), "") or _variable(_container_of(raw), SLOT)


def _kind_of_volume(raw: Raw, name: str) -> str:
    """Return of which kind the volume of this name is, such as image or emptyDir; "" for none."""
    volumes = (raw.get("spec") or {}).get("volumes") or ()
    kinds = (kind for volume in volumes if volume["name"] == name for kind in volume if kind != "name")
    return next(kinds, "")


def _claims_of(raw: Raw) -> Iterator[str]:
    """Return the ResourceClaims of a pod by name. Those of templates are named in its status, once they were made."""
    told = (raw.get("status") or {}).get("resourceClaimStatuses") or ()
    made = {item["name"]: item.get("resourceClaimName") for item in told}
    for claim in (raw.get("spec") or {}).get("resourceClaims") or ():
        if name := claim.get("resourceClaimName") or made.get(claim["name"]):
            yield str(name)


def _place_of(labels: Mapping[str, str]) -> _Place:
    """Return where a pod is. What is counted with is bounded here, before anybody counts so far."""
    nowhere = _Place()
    place = _Place(
        replica=_count(labels.get(LABEL_REPLICA, ""), nowhere.replica),
        num_ranks=_count(labels.get(LABEL_RANKS, ""), nowhere.num_ranks),
        group_size=_count(labels.get(LABEL_GROUP_SIZE, ""), nowhere.group_size),
        ordinal=_count(labels.get(LABEL_WORKER_INDEX, ""), nowhere.ordinal),
    )
    return place if place.is_possible else nowhere


def _count(text: str, default: int) -> int:
    return int(text) if text.isdecimal() else default


def _container_of(raw: Raw) -> Raw:
    """Return what the worker was ordered to run."""
    containers = (raw.get("spec") or {}).get("containers") or ()
    return next((item for item in containers if item["name"] == CONTAINER), {})


def _variable(container: Raw, name: str) -> str:
    """Return the value of a variable, "" for none. Of several the last counts, as for the kubelet."""
    values = [item.get("value") or "" for item in container.get("env") or () if item.get("name") == name]
    return str(values[-1]) if values else ""


def _parse_container(statuses: Iterable[Raw], name: str) -> Container:
    status = next((item for item in statuses if item["name"] == name), None)
    if status is None:
        return Container()
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    end = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
    return Container(
        is_running="running" in state,
        is_ready=status.get("ready", False),
        restart_count=status.get("restartCount", 0),
        started=parse_time((state.get("running") or {}).get("startedAt")),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        exit_code=end.get("exitCode"),
        exit_reason=end.get("reason", ""),
        exit_message=end.get("message", "").strip(),
        ended=parse_time(end.get("finishedAt")),
    )
