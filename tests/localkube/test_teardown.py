"""What is ended in which order, and what counts as left behind."""

import itertools
import socket
from pathlib import Path

import pytest

from localkube import cgroups, components, leftovers, teardown
from localkube.leftovers import Leftovers
from localkube.spec import Paths

NOTHING = {
    "mounts": (),
    "nft_tables": (),
    "cgroups": (),
    "processes": (),
    "bridge": False,
    "sysctls": (),
    "files": (),
}
EVERYTHING = [name for group in components.STOP_ORDER for name in group]


def test_the_kubelet_ends_before_what_it_would_start_again_and_containerd_last():
    order = list(itertools.chain.from_iterable(teardown.stop_groups(reversed(EVERYTHING))))
    assert order.index("kubelet") < order.index("kube-apiserver") < order.index("etcd")
    assert order.index("containerd") > order.index("kube-apiserver")
    assert sorted(order) == sorted(EVERYTHING)


def test_a_component_of_another_version_is_ended_first_and_not_forgotten():
    assert teardown.stop_groups(["etcd", "kube-novelty"]) == [["kube-novelty"], ["etcd"]]


def test_nothing_running_is_nothing_to_end():
    assert teardown.stop_groups([]) == []


MOUNTINFO = """21 1 254:0 / / rw - ext4 /dev/vda rw
30 21 0:1 / /cache/localkube/state/run/a rw - tmpfs tmpfs rw
31 30 0:2 / /cache/localkube/state/run/a/b\\040c rw - tmpfs tmpfs rw
32 21 0:3 / /cache/localkube-of-another rw - tmpfs tmpfs rw
33 21 0:4 / /cache/localkube/state/run/a rw - overlay overlay rw
34 21 0:5 / /cache/localkube/state/run/z rw - tmpfs tmpfs rw
"""


def test_mounts_are_found_last_mounted_first_and_a_similar_name_is_not_ours():
    found = leftovers.mounts_under(Path("/cache/localkube"), MOUNTINFO)
    assert found == [
        "/cache/localkube/state/run/z",
        "/cache/localkube/state/run/a",
        "/cache/localkube/state/run/a/b c",
        "/cache/localkube/state/run/a",
    ]


@pytest.mark.parametrize(("escaped", "path"), [(r"/a\040b", "/a b"), (r"/a\134040", r"/a\040"), ("/plain", "/plain")])
def test_escaped_mount_points_are_read(escaped, path):
    assert leftovers.unescape_mount(escaped) == path


def test_only_kube_proxys_tables_and_that_of_the_policies_are_ours():
    listing = (
        "table ip nat\ntable ip kube-proxy\ntable ip6 kube-proxy\ntable inet firewalld\ntable inet localkube-policies\n"
    )
    ours = [("ip", "kube-proxy"), ("ip6", "kube-proxy"), ("inet", "localkube-policies")]
    assert leftovers.parse_nft_tables(listing) == ours


def test_nothing_left_is_false():
    assert not Leftovers(**NOTHING)


@pytest.mark.parametrize(
    "left",
    [
        {"mounts": ("/m",)},
        {"nft_tables": ("ip kube-proxy",)},
        {"cgroups": ("/g",)},
        {"processes": (1,)},
        {"bridge": True},
        {"sysctls": ("kernel.panic",)},
        {"files": ("/f",)},
    ],
)
def test_each_kind_of_leftover_counts(left):
    assert Leftovers(**(NOTHING | left))


@pytest.mark.parametrize(
    ("command", "is_ours"),
    [
        ("/usr/bin/containerd-shim-runc-v2 -address /cache/localkube/state/run/containerd.sock", True),
        ("/cache/localkube/bin/abc/etcd --data-dir=/cache/localkube/state/var/etcd", True),
        ("/usr/bin/containerd-shim-runc-v2 -address /run/containerd/containerd.sock", False),
        ("/usr/bin/etcd --data-dir=/cache/localkube-of-another/state/var/etcd", False),
        ("cat /cache/localkube/state/run/x", False),
        ("/cache/localkube/bin/abc/kubectl --kubeconfig=/cache/localkube/state/x get pods", False),
        ("/cache/localkube/state/etcd", False),
        ("", False),
    ],
)
def test_a_process_without_pid_file_is_ours_by_program_and_place_alone(command, is_ours):
    words = [word.encode() for word in command.split(" ")]
    assert leftovers.is_stray(words, Paths(Path("/cache/localkube"))) is is_ours


def test_a_socket_is_dead_once_nobody_listens(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        assert not leftovers.is_dead_socket(tmp_path / "s")
    assert leftovers.is_dead_socket(tmp_path / "s")
    (tmp_path / "file").touch()
    assert not leftovers.is_dead_socket(tmp_path / "file")


def test_a_cached_network_result_is_ours_if_it_speaks_of_our_folder(tmp_path):
    (tmp_path / "result").write_text('{"sandbox": "/cache/localkube/state/run/netns/x"}')
    assert leftovers.mentions(tmp_path / "result", Path("/cache/localkube"))
    assert not leftovers.mentions(tmp_path / "result", Path("/cache/local"))
    assert not leftovers.mentions(tmp_path / "none", tmp_path)


@pytest.fixture
def version_1(tmp_path):
    for name in ("cpuset", "memory"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "not-a-hierarchy").mkdir()
    return tmp_path


def test_our_group_is_made_in_every_hierarchy_of_version_1(version_1):
    cgroups.ensure(version_1)
    assert {group.parent.name for group in cgroups.groups(version_1)} == {"cpuset", "memory"}


def test_a_new_cpuset_group_gets_the_processors_of_its_parent(version_1):
    group = version_1 / "cpuset" / "dormouse"
    group.mkdir()
    for name, value in (("cpuset.cpus", "0-1"), ("cpuset.mems", "0")):
        (version_1 / "cpuset" / name).write_text(value)
        (group / name).write_text("\n")
    cgroups.ensure(version_1)
    assert (group / "cpuset.cpus").read_text() == "0-1"


def test_version_2_hands_its_controllers_down(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma")
    cgroups.ensure(tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +cpuset +io +memory +pids"
    assert cgroups.groups(tmp_path) == [tmp_path / "dormouse"]


def test_groups_come_children_first(version_1):
    (version_1 / "memory" / "dormouse" / "pods" / "p").mkdir(parents=True)
    assert [group.name for group in cgroups.groups(version_1)] == ["p", "pods", "dormouse"]
