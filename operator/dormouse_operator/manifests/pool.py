"""A pool's slots as ResourceClaims, and members' pods on them. Pure.

A slot's claim is named like the slot. Pods name it, so kubelet and driver show them its devices and no others.
"""

from __future__ import annotations

from dormouse_api.names import API_VERSION, LABEL_POOL, LABEL_SLOT, POOL_KIND
from dormouse_operator.manifests.common import FIELD_MANAGER, Manifest
from dormouse_operator.manifests.reservation import beside_reservation
from dormouse_operator.model import Deployment
from dormouse_operator.model.pools import Pool
from dormouse_operator.parse import CONTAINER, POOL_CLAIM

_REQUEST = "gpu"  # within the claim


def slot_claim_manifest(pool: Pool, slot: str) -> Manifest:
    """Return the claim of a slot. It goes with its pool, and is never changed: a claim's spec cannot be."""
    labels = {
        "app.kubernetes.io/name": "dormouse",
        "app.kubernetes.io/part-of": "dormouse",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        LABEL_POOL: pool.key.name,
        LABEL_SLOT: slot,
    }
    owner = {"apiVersion": API_VERSION, "kind": POOL_KIND, "name": pool.key.name, "uid": pool.uid, "controller": True}
    selectors = [{"cel": {"expression": expression}} for expression in pool.device.selectors]
    exactly = {
        "deviceClassName": pool.device.device_class,
        "allocationMode": "ExactCount",
        "count": pool.gpus_per_slot,
        **({"selectors": selectors} if selectors else {}),
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": slot,
            "namespace": pool.key.namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": [{"name": _REQUEST, "exactly": exactly}]}},
    }


def on_slot(pod: Manifest, pool: Pool, slot: str) -> Manifest:
    """Return a member's pod, with its template merged, on a slot of its pool: only its worker sees the devices."""
    if pool.device.reservation:
        return beside_reservation(pod, pool, slot, pool.reserved[slot])
    labels = {**pod["metadata"]["labels"], LABEL_POOL: pool.key.name, LABEL_SLOT: slot}
    claims = [*(pod["spec"].get("resourceClaims") or ()), {"name": POOL_CLAIM, "resourceClaimName": slot}]
    containers = [_with_devices(each) if each["name"] == CONTAINER else each for each in pod["spec"]["containers"]]
    spec = {**pod["spec"], "resourceClaims": claims, "containers": containers}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": spec}


def _with_devices(container: Manifest) -> Manifest:
    resources = container.get("resources") or {}
    claims = [*(resources.get("claims") or ()), {"name": POOL_CLAIM}]
    return {**container, "resources": {**resources, "claims": claims}}


def member_complaint(deployment: Deployment, pool: Pool, wanted_replicas: int) -> str:
    """Return why the deployment cannot be a member of its pool, with the numbers; "" where it can."""
    name, tensor, per_slot = pool.key.name, deployment.parallelism.tensor, pool.gpus_per_slot
    if tensor != per_slot:
        return (
            f"spec.parallelism.tensor is {tensor}, and each slot of GpuPool {name} has {per_slot} GPUs; set it to that"
        )
    most = max(wanted_replicas, deployment.scaling.max_replicas if deployment.scaling else 0)
    if most > pool.num_slots:
        words = f"there may be {most} replicas, and GpuPool {name} has {pool.num_slots} slots"
        return f"{words}: each replica of a member is on a slot of its own"
    return _template_complaint(deployment)


def _template_complaint(deployment: Deployment) -> str:
    """Return what of spec.template has the name of the slot's claim; "" for nothing."""
    claims = (deployment.placement.template.get("spec") or {}).get("resourceClaims") or ()
    if not any(claim.get("name") == POOL_CLAIM for claim in claims):
        return ""
    words = "is the slot's where spec.gpu.pool is set; choose another name"
    return f"spec.template.spec.resourceClaims[{POOL_CLAIM}] {words}"
