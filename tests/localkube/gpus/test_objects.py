"""What is told to the API server, and what is read from claims."""

import pytest

from localkube.gpus.objects import CLASS_PATH, DRIVER, MAX_GPUS, Allocated, Gpus, allocated, bytes_of
from tests.localkube.gpus.kit import a_claim

GPUS = Gpus(2, "512Mi", node="n")


def test_the_slice_holds_one_device_for_each_gpu_with_its_memory_and_an_identity_of_its_own():
    told = GPUS.resource_slice("node-1")["spec"]
    assert (told["driver"], told["nodeName"], told["pool"]["name"]) == (DRIVER, "n", "n")
    assert [device["name"] for device in told["devices"]] == ["gpu-0", "gpu-1"]
    assert {device["capacity"]["memory"]["value"] for device in told["devices"]} == {"512Mi"}
    assert len({device["attributes"]["uuid"]["string"] for device in told["devices"]}) == 2


def test_the_slice_goes_with_its_node():
    [owner] = GPUS.resource_slice("node-1")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "n", "node-1")


def test_objects_lie_where_they_say():
    told = (
        (CLASS_PATH, GPUS.device_class(), "deviceclasses"),
        (GPUS.slice_path, GPUS.resource_slice("u"), "resourceslices"),
    )
    for path, value, kinds in told:
        assert path == f"/apis/{value['apiVersion']}/{kinds}/{value['metadata']['name']}"


def test_the_class_takes_this_drivers_devices_alone():
    [selector] = GPUS.device_class()["spec"]["selectors"]
    assert selector["cel"]["expression"] == f'device.driver == "{DRIVER}"'


def test_a_slice_holds_as_many_as_the_api_allows():
    assert len(Gpus(MAX_GPUS, "1Gi").resource_slice("u")["spec"]["devices"]) == 128


@pytest.mark.parametrize(("quantity", "num_bytes"), [("512Mi", 512 << 20), ("1Gi", 1 << 30), ("4096", 4096)])
def test_a_quantity_is_read(quantity, num_bytes):
    assert bytes_of(quantity) == num_bytes


@pytest.mark.parametrize("quantity", ["0", "", "1.5Gi", "512M", "-1Mi", "Mi"])
def test_a_quantity_that_is_none_is_refused_by_its_words(quantity):
    with pytest.raises(ValueError, match=f"^{quantity!r} is no number of bytes"):
        bytes_of(quantity)


def test_devices_of_a_claim_are_ours_alone():
    ours, theirs = a_claim("a", "gpu-1", "gpu-0"), a_claim("b", "gpu-0", driver="gpu.example.com")
    assert allocated(ours) == (Allocated("gpu", "localkube", "gpu-1"), Allocated("gpu", "localkube", "gpu-0"))
    assert allocated(theirs) == ()


def test_a_claim_that_waits_has_none():
    assert allocated(a_claim("a")) == ()
    assert allocated({"status": {}}) == ()
    assert allocated({"status": {"allocation": None}}) == ()
