"""The memory that a worker's pod asks for: noted when it is made, lowered and raised while it lives. Pure."""

from __future__ import annotations

from dormouse_api.names import ANNOTATION_MEMORY_REQUEST
from dormouse_operator.manifests.common import Manifest
from dormouse_operator.model import Pod
from dormouse_operator.parse import CONTAINER


def with_memory_request(pod: Manifest) -> Manifest:
    """Return the pod with a note of what its worker asks for: that is lowered while it sleeps, and raised again."""
    worker = next(each for each in pod["spec"]["containers"] if each["name"] == CONTAINER)
    resources = worker.get("resources") or {}
    asked = (resources.get("requests") or {}).get("memory") or (resources.get("limits") or {}).get("memory")
    if not asked:
        return pod
    annotations = {**(pod["metadata"].get("annotations") or {}), ANNOTATION_MEMORY_REQUEST: str(asked)}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


def memory_manifest(namespace: str, pod: Pod, num_bytes: int) -> Manifest:
    """Return the request of a pod's worker, to be applied to the resize subresource."""
    container = {"name": CONTAINER, "resources": {"requests": {"memory": str(num_bytes)}}}
    metadata = {"name": pod.name, "namespace": namespace, "uid": pod.uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
