"""What makes a device unfit, by a driver that says what the test tells it to; and whose memory is whose."""

import pytest

from dormouse_worker.common.host import Host
from dormouse_worker.model.memory.gpu_health import FATAL_XIDS, MAX_XIDS_PER_LOOK, GpuFault, HealthCheck, own_bytes
from dormouse_worker.model.memory.testing_nvml import FakeNvml


@pytest.fixture
def nvml():
    return FakeNvml()


@pytest.fixture
def check(nvml):
    check = HealthCheck(nvml)
    assert check.look() is None
    return check


@pytest.mark.parametrize("xid", [48, 79, 94, 95])
def test_an_xid_of_the_device_is_a_fault_with_its_number_and_meaning(nvml, check, xid):
    nvml.xids.extend([31, xid, 13])
    assert str(check.look()) == f"Xid {xid} on GPU-fake: {FATAL_XIDS[xid]}"


def test_an_xid_of_a_program_is_only_logged(nvml, check, caplog):
    nvml.xids.extend([13, 31])
    assert check.look() is None
    assert "Xid 31 on GPU-fake: not fatal to the device" in caplog.text


def test_an_xid_that_is_there_at_the_first_look_counts(nvml):
    nvml.xids.append(79)
    assert HealthCheck(nvml).look().xid == 79


def test_a_device_that_reports_without_end_does_not_hold_the_look(nvml, check):
    nvml.xids.extend([13] * (MAX_XIDS_PER_LOOK + 1))
    assert check.look() is None
    assert len(nvml.xids) == 1


def test_memory_errors_count_from_the_first_look(nvml):
    nvml.ecc_errors = 3
    check = HealthCheck(nvml)
    assert check.look() is None
    assert check.look() is None
    nvml.ecc_errors = 5
    assert check.look() == GpuFault("GPU-fake", "2 uncorrectable memory errors more than before (ECC)")


def test_a_count_that_is_reset_or_not_kept_is_no_fault(nvml):
    nvml.ecc_errors = 3
    check = HealthCheck(nvml)
    for count in (3, 0, None, 0):
        nvml.ecc_errors = count
        assert check.look() is None


def test_a_reset_driver_is_a_fault_without_a_number(nvml, check):
    nvml.lost = "the driver was restarted"
    assert str(check.look()) == "fault on GPU-fake: the driver was restarted"


def test_the_event_of_a_loss_is_told_before_the_loss(nvml, check):
    nvml.xids.append(79)
    nvml.lost = "the driver has lost the GPU"
    assert check.look().xid == 79


class Namespace:
    """A host that knows, or does not know, the driver's id of this process."""

    def __init__(self, pid):
        self.pid = pid

    def driver_pid(self):
        return self.pid


def test_own_bytes_are_those_of_our_id_at_the_driver(nvml):
    nvml.memory = {17: 100, 4711: 200}
    assert own_bytes(nvml, Namespace(4711)) == 200


@pytest.mark.parametrize("shown", [{}, {17: 100}])
def test_a_driver_that_does_not_show_us_tells_nothing(nvml, shown):
    nvml.memory = shown
    assert own_bytes(nvml, Namespace(4711)) is None


def test_an_id_of_the_containers_is_not_taken_for_one_of_the_hosts(nvml, tmp_path):
    """Process 17 of the host is a neighbour; ours is 17 only inside the container."""
    own = tmp_path / "self"
    (own / "ns").mkdir(parents=True)
    (own / "ns" / "pid").symlink_to("pid:[4026532999]")
    (own / "status").write_text("Name:\tpython\nNSpid:\t17\nVmRSS:\t     100 kB\n")
    nvml.memory = {17: 100}
    assert own_bytes(nvml, Host(proc=tmp_path)) is None
    (own / "status").write_text("Name:\tpython\nNSpid:\t4711\t17\n")  # the host's /proc, mounted into the container
    nvml.memory = {17: 100, 4711: 200}
    assert own_bytes(nvml, Host(proc=tmp_path)) == 200
