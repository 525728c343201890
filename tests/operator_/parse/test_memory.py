"""How much memory of its node a pod asks for, and whether that can change."""

from __future__ import annotations

import pytest

from dormouse_api.names import ANNOTATION_MEMORY_REQUEST
from dormouse_operator.model.running import PodMemory
from dormouse_operator.parse.memory import parse_memory


def test_what_a_pod_asks_for_has_and_waits_for():
    pod = {
        "metadata": {"annotations": {ANNOTATION_MEMORY_REQUEST: "4Gi"}},
        "status": {
            "qosClass": "Guaranteed",
            "conditions": [{"type": "Ready"}, {"type": "PodResizePending", "reason": "Deferred", "message": "full"}],
        },
    }
    container, status = {"resources": {"requests": {"memory": "1024"}}}, {"allocatedResources": {"memory": "1Ki"}}
    assert parse_memory(pod, container, status) == PodMemory(
        full_bytes=4 << 30, requested_bytes=1024, allocated_bytes=1024, is_guaranteed=True, complaint="full"
    )


def test_what_is_not_there_or_cannot_be_read_is_nothing():
    assert parse_memory({"metadata": {}}, {}, {}) == PodMemory()
    odd = {"metadata": {"annotations": {ANNOTATION_MEMORY_REQUEST: "much"}}}
    assert parse_memory(odd, {"resources": {"requests": {"memory": "4Q"}}}, {}) == PodMemory()


@pytest.mark.parametrize(
    ("fields", "can_change", "is_short"),
    [
        ({}, True, True),
        ({"requested_bytes": 4}, True, True),
        ({"requested_bytes": 4, "allocated_bytes": 4}, True, False),
        ({"full_bytes": 0}, False, False),
        ({"allocated_bytes": 0}, False, False),
        ({"is_guaranteed": True}, False, False),
    ],
)
def test_a_pod_is_short_of_memory_that_it_can_have_back(fields, can_change, is_short):
    memory = PodMemory(**{"full_bytes": 4, "requested_bytes": 2, "allocated_bytes": 2, **fields})
    assert (memory.can_change, memory.is_short) == (can_change, is_short)
