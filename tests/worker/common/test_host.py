"""Limits and resident memory, read from made-up and from real /proc and /sys/fs/cgroup."""

import gc
import os

import pytest

from dormouse_worker.common.host import (
    Host,
    freeze_garbage_collector,
    measure_peak,
    release_free_memory,
    thaw_garbage_collector,
)

NO_LIMIT_V1 = str(0x7FFFFFFFFFFFF000)


@pytest.fixture
def make_host(tmp_path):
    """Return a function (text of /proc/self/cgroup, {file under the cgroup root: text}) → Host."""

    def make(groups, files):
        (tmp_path / "proc/self").mkdir(parents=True)
        if groups is not None:
            (tmp_path / "proc/self/cgroup").write_text(groups)
        for name, text in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
        return Host(tmp_path / "proc", tmp_path / "cgroup")

    return make


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/", {"memory.max": "1048576"}, 1 << 20),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "2097152"}, 2 << 20),
        ("0::/a/b", {"a/b/memory.max": "1048576", "a/memory.max": "2097152"}, 1 << 20),
        ("4:memory:/pod/c", {"memory/memory.limit_in_bytes": "3145728"}, 3 << 20),
        ("4:memory:/pod/c", {"memory/pod/c/memory.limit_in_bytes": NO_LIMIT_V1}, None),
        ("4:memory,hugetlb:/\n0::/", {"memory/memory.limit_in_bytes": "1048576"}, 1 << 20),
        ("1:name=systemd:/", {"memory.max": "1048576"}, None),
        (None, {"memory.max": "1048576"}, None),
    ],
)
def test_the_memory_limit_is_the_smallest_on_the_way_to_the_root(make_host, groups, files, limit):
    assert make_host(groups, files).memory_limit_bytes() == limit


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("3:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_cpu_limit_is_quota_over_period(make_host, groups, files, cores):
    assert make_host(groups, files).cpu_limit() == cores


@pytest.mark.parametrize(
    ("quota", "wanted", "threads"), [("50000", 0, 1), ("100000", 0, 1), ("max", 0, None), ("50000", 3, 3)]
)
def test_threads_are_the_wanted_ones_or_the_cpu_limit_or_all_cores(make_host, quota, wanted, threads):
    host = make_host("0::/", {"cpu.max": f"{quota} 100000"})
    assert host.num_threads(wanted) == (threads or len(os.sched_getaffinity(0)))


def test_resident_memory_of_a_process_that_is_gone_is_zero(make_host):
    assert make_host("0::/", {}).resident_bytes(12345) == 0


def test_the_real_machine_has_memory_and_so_do_we():
    host = Host()
    assert host.memory_total_bytes() > host.resident_bytes() > 1 << 20
    assert host.resident_bytes(os.getppid()) > 0
    resident_bytes = host.resident_bytes()
    assert host.peak_resident_bytes() >= resident_bytes


def test_a_real_peak_is_measured_and_given_back():
    host, size = Host(), 256 << 20
    slack = size // 2  # the system takes pages of files back at any time
    release_free_memory()
    before = host.resident_bytes()
    with measure_peak(host) as peak:
        del_me = bytearray(b"x") * size
        del del_me
    assert size - slack < peak.resident_bytes - before < size + slack
    release_free_memory()  # after larger pieces the allocator may keep this one
    assert host.resident_bytes() - before < slack


def test_freed_pieces_between_held_ones_go_back_to_the_kernel():
    """The allocator keeps them otherwise: a sleeping worker would look as large as an awake one."""
    host = Host()
    pieces = [b"x" * 100_000 for _ in range(1000)]  # below the size that the allocator maps one by one
    held = pieces[::50]
    del pieces
    before = host.resident_bytes()
    release_free_memory()
    assert before - host.resident_bytes() > 50 << 20
    assert len(held) == 20


class SteppingMeter:
    """A meter that may not be reset: memory rises with each reading, up to 10."""

    def __init__(self):
        self.value = 0

    def reset_peak(self):
        return False

    def resident_bytes(self):
        self.value = min(10, self.value + 1)
        return self.value

    def peak_resident_bytes(self):
        raise AssertionError("without a reset the high-water mark is of the whole life")


def test_where_the_mark_can_not_be_reset_a_thread_samples():
    meter = SteppingMeter()
    with measure_peak(meter, sample_interval_s=0.0) as peak:
        while meter.value < 10:
            pass
    assert peak.resident_bytes == 10


def test_a_kernel_that_does_not_permit_the_reset_is_told(make_host):
    host = make_host("0::/", {})
    (host._proc / "self" / "clear_refs").mkdir()
    assert host.reset_peak() is False


@pytest.mark.parametrize(
    ("namespace", "status", "pid"),
    [
        ("pid:[4026531836]", "NSpid:\t4711\n", 4711),  # on the machine itself
        ("pid:[4026532999]", "NSpid:\t17\n", None),  # in a container: the driver's id is not to be seen
        ("pid:[4026532999]", "NSpid:\t4711\t17\n", 4711),  # with the machine's /proc
        ("pid:[4026531836]", "VmRSS:\t100 kB\n", None),  # a kernel or sandbox without the line
        (None, "NSpid:\t4711\n", None),
        ("pid:[4026531836]", None, None),
    ],
)
def test_the_drivers_id_of_this_process_is_known_only_where_it_can_be_seen(tmp_path, namespace, status, pid):
    own = tmp_path / "self"
    (own / "ns").mkdir(parents=True)
    if namespace is not None:
        (own / "ns" / "pid").symlink_to(namespace)
    if status is not None:
        (own / "status").write_text(f"Name:\tpython\n{status}Threads:\t1\n")
    assert Host(proc=tmp_path).driver_pid() == pid


def test_the_real_proc_gives_our_own_id_or_none():
    assert Host().driver_pid() in {os.getpid(), None}


def test_what_is_frozen_is_not_looked_at_until_it_is_thawed():
    freeze_garbage_collector()
    assert gc.get_freeze_count() > 0
    thaw_garbage_collector()
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as it was
