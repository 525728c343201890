"""Slots without dynamic resource allocation: the pod that reserves a slot's devices, and members' pods beside it. Pure.

The device plugin tells a container its devices by a variable. The first container of the reservation writes them to its
termination message, so they stand in the pod's status and nothing has to be asked; it hands the devices on to the
second, which keeps them. Members' pods ask for no device: they are bound to the node, and name the devices themselves.
"""

from __future__ import annotations

from typing import Any

from dormouse_api.names import API_VERSION, COMPONENT_RESERVATION, LABEL_COMPONENT, LABEL_POOL, LABEL_SLOT, POOL_KIND
from dormouse_operator.manifests.common import FIELD_MANAGER, Manifest, with_variables
from dormouse_operator.manifests.pod import WorkerDefaults
from dormouse_operator.model.pool_device import Reservation, SlotPlace
from dormouse_operator.model.pools import Pool
from dormouse_operator.parse import SLOT, SLOT_DEVICES, TELLER

_USER = 65532
_GRACE_S = 60  # for members to leave, where somebody deletes or evicts the pod: it keeps the devices so long
_PROGRAM = ["python", "-m", "dormouse_worker.reserve"]


def reservation_name(slot: str) -> str:
    """Return the name of the pod that reserves a slot's devices."""
    return f"{slot}-reservation"


def reservation_selector(pool: str) -> str:
    """Return the selector of the pods that reserve devices of a pool."""
    return f"{LABEL_COMPONENT}={COMPONENT_RESERVATION},{LABEL_POOL}={pool}"


def reservation_manifest(pool: Pool, slot: str, *, image: str, defaults: WorkerDefaults) -> Manifest:
    """Return the pod that reserves a slot's devices. It goes with its pool."""
    reservation = _reservation(pool)
    owner = {"apiVersion": API_VERSION, "kind": POOL_KIND, "name": pool.key.name, "uid": pool.uid, "controller": True}
    labels = {
        **pool.queue_labels,
        "app.kubernetes.io/name": "dormouse",
        "app.kubernetes.io/part-of": "dormouse",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        LABEL_COMPONENT: COMPONENT_RESERVATION,
        LABEL_POOL: pool.key.name,
        LABEL_SLOT: slot,
    }
    each: Manifest = {
        "image": image,
        "imagePullPolicy": defaults.image_pull_policy,
        "resources": {
            "requests": {"cpu": "1m", "memory": "16Mi"},
            "limits": {reservation.resource_name: pool.gpus_per_slot},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    spec: Manifest = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [{**each, "name": TELLER, "command": [*_PROGRAM, "tell", reservation.variable]}],
        "containers": [{**each, "name": "reservation", "command": [*_PROGRAM, "hold"]}],
    }
    if defaults.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in defaults.image_pull_secrets]
    metadata = {
        "name": reservation_name(slot),
        "namespace": pool.key.namespace,
        "labels": labels,
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def beside_reservation(pod: Manifest, pool: Pool, slot: str, place: SlotPlace) -> Manifest:
    """Return a member's pod on the node of its slot's devices: its worker sees them, and asks the cluster for none."""
    reservation = _reservation(pool)
    devices = ",".join(place.devices)
    variables = {reservation.variable: devices, SLOT: slot, SLOT_DEVICES: devices}
    containers = with_variables(pod["spec"]["containers"], variables)
    spec = {**pod["spec"], "containers": containers, "affinity": _bound_to(pod["spec"].get("affinity"), place.node)}
    if reservation.runtime_class:
        spec["runtimeClassName"] = reservation.runtime_class
    labels = {**pod["metadata"]["labels"], LABEL_POOL: pool.key.name, LABEL_SLOT: slot}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": spec}


def _reservation(pool: Pool) -> Reservation:
    assert pool.device.reservation, "asked of pools with reservations only"
    return pool.device.reservation


def _bound_to(affinity: Any, node: str) -> Manifest:
    """Return the affinity, and the node beside it: each of the terms, of which one has to hold, names the node."""
    known: Manifest = dict(affinity or {})
    of_nodes = dict(known.get("nodeAffinity") or {})
    required = dict(of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), here]} for term in terms
    ]
    of_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = required
    return {**known, "nodeAffinity": of_nodes}
