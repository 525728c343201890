"""Pods that Kueue lets start together or not at all. Pure.

A pod by itself is a workload of its own by its label. The pods of a group name their workload, and how many there are.
Whoever says that somebody else suspends pods gets no finalizer on them: the operator ends groups as a whole, and nobody
would take a finalizer away before all of them were replaced.
"""

from __future__ import annotations

from dormouse_operator.manifests.common import Manifest
from dormouse_operator.parse.queues import MANAGED, QUEUE

_KUEUE = "kueue.x-k8s.io"
_OWNER = "inferencedeployment"


def admit_together(pod: Manifest, leader: str, num_pods: int) -> Manifest:
    """Return the pod as one of a group that waits as one, if it waits in a queue at all."""
    metadata = pod["metadata"]
    if QUEUE not in metadata["labels"]:
        return pod
    labels = {**metadata["labels"], f"{_KUEUE}/pod-group-name": leader, MANAGED: "true"}
    annotations = {
        **metadata.get("annotations", {}),
        f"{_KUEUE}/pod-group-total-count": str(num_pods),
        f"{_KUEUE}/pod-group-serving": "true",  # a pod that ended gives no quota back: the group begins anew
        f"{_KUEUE}/pod-suspending-parent": _OWNER,
    }
    return {**pod, "metadata": {**metadata, "labels": labels, "annotations": annotations}}
