"""What the pod that reserves a slot's devices says of them."""

from __future__ import annotations

import pytest

from dormouse_operator.model.pool_device import PoolDevice, Reservation, SlotPlace
from dormouse_operator.parse import SpecError, parse_pool, parse_reservation


def pod(told=None, node="n1", **status):
    states = [{"name": "other", "state": {}}, {"name": "tell", "state": told}] if told is not None else []
    spec = {"nodeName": node} if node else {}
    return {"metadata": {"name": "p"}, "spec": spec, "status": {"initContainerStatuses": states, **status}}


def ended(message):
    return {"terminated": {"exitCode": 0, "message": message}}


@pytest.mark.parametrize(("message", "devices"), [("GPU-1", ("GPU-1",)), (" GPU-1, MIG-2/3 \n", ("GPU-1", "MIG-2/3"))])
def test_its_last_words_are_the_devices(message, devices):
    assert parse_reservation(pod(ended(message))) == ("n1", devices, "")


@pytest.mark.parametrize("message", ["", "all", "void", "none", "GPU-1,all", "GPU 1", "x" * 600, None])
def test_words_that_name_no_device_are_none(message):
    node, devices, complaint = parse_reservation(pod(ended(message)))
    assert (node, devices) == ("n1", ())
    assert "by the device plugin, which names no device" in complaint


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (pod(node=""), "pod p has no node"),
        (
            pod(node="", conditions=[{"type": "PodScheduled", "message": "no GPU"}]),
            "pod p has no node: no GPU",
        ),
        (pod(), "pod p has not told its devices yet"),
        (pod({"waiting": {"reason": "ErrImagePull"}}), "pod p has not told its devices yet: ErrImagePull"),
        (pod(ended("GPU-1"), phase="Failed", reason="Evicted"), "pod p has ended: Evicted"),
        (pod(ended("GPU-1"), phase="Succeeded"), "pod p has ended: nobody says why"),
        ({"metadata": {"name": "p"}}, "pod p has no node"),
    ],
)
def test_why_there_are_no_devices_is_said(raw, complaint):
    assert parse_reservation(raw)[1:] == ((), complaint)


METADATA = {"namespace": "team", "name": "p", "uid": "u"}
RESERVATION = {"resourceName": "nvidia.com/gpu"}


def test_a_pool_may_reserve_its_devices_and_remembers_where_they_are():
    slots = [
        {"name": "p-0", "node": "n1", "devices": ["GPU-1"]},
        {"name": "p-1", "node": "n1", "devices": []},
        {"name": "p-2", "devices": ["GPU-1"]},
    ]
    raw = {
        "metadata": METADATA,
        "spec": {"slots": 3, "device": {"reservation": RESERVATION}},
        "status": {"slots": slots},
    }
    pool = parse_pool(raw)
    assert pool.device == PoolDevice(reservation=Reservation("nvidia.com/gpu", "", "NVIDIA_VISIBLE_DEVICES"))
    assert pool.reserved == {"p-0": SlotPlace("n1", ("GPU-1",))}
    assert pool.open_slots == ("p-0",)


def test_a_pool_has_its_devices_by_one_of_two_ways():
    device = {"reservation": RESERVATION, "claim": {"deviceClassName": "gpu"}}
    with pytest.raises(SpecError, match="claim and reservation; set one of them"):
        parse_pool({"metadata": METADATA, "spec": {"slots": 1, "device": device}})
