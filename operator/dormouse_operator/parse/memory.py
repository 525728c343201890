"""How much memory of its node a pod's worker asks for, and has. Pure."""

from __future__ import annotations

from dormouse_api.names import ANNOTATION_MEMORY_REQUEST
from dormouse_operator.model.running import PodMemory
from dormouse_operator.parse.values import Raw, SpecError, parse_bytes


def parse_memory(pod: Raw, container: Raw, status: Raw) -> PodMemory:
    """Return it, of a pod, its worker's container and that one's status. What nobody can read is nothing."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    pending: Raw = next((item for item in conditions if item["type"] == "PodResizePending"), {})
    return PodMemory(
        full_bytes=_bytes((pod["metadata"].get("annotations") or {}).get(ANNOTATION_MEMORY_REQUEST)),
        requested_bytes=_bytes(((container.get("resources") or {}).get("requests") or {}).get("memory")),
        allocated_bytes=_bytes((status.get("allocatedResources") or {}).get("memory")),
        is_guaranteed=(pod.get("status") or {}).get("qosClass") == "Guaranteed",
        complaint=str(pending.get("message") or pending.get("reason") or ""),
    )


def parse_allocatable(node: Raw) -> int:
    """Return how much memory a node has for pods, 0 where it does not say."""
    return _bytes(((node.get("status") or {}).get("allocatable") or {}).get("memory"))


def _bytes(quantity: str | int | None) -> int:
    try:
        return parse_bytes("memory", quantity) if quantity else 0
    except SpecError:
        return 0
