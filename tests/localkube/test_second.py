"""The second node differs from the first in everything that two kubelets on one machine must not share."""

import json
from pathlib import Path

import pytest

from localkube import cgroups, components, config, leftovers, pki, second, spec, teardown
from localkube.__main__ import main
from localkube.components import Programs
from localkube.spec import Paths

PATHS = Paths(Path("/cache/localkube"))
FIRST = config.files(PATHS, runc="/usr/sbin/runc", cni_bin="/usr/lib/cni")
SECOND = second.files(PATHS, runc="/usr/sbin/runc", cni_bin="/usr/lib/cni")


def test_no_address_socket_or_folder_of_a_kubelet_is_the_others():
    one, two = json.loads(FIRST["kubelet.json"]), json.loads(SECOND["kubelet.json"])
    apart = ("address", "healthzBindAddress", "podCIDR", "cgroupRoot", "containerRuntimeEndpoint", "tlsCertFile")
    apart += ("podLogsDir", "volumePluginDir", "resolvConf", "tlsPrivateKeyFile")
    assert [name for name in apart if one[name] == two[name]] == []
    assert {name for name in one if one[name] != two[name]} == set(apart)
    assert one["clusterDNS"] == two["clusterDNS"]


def test_both_trust_the_same_authority_and_pods_get_addresses_of_their_own_range():
    two = json.loads(SECOND["kubelet.json"])
    assert two["authentication"]["x509"]["clientCAFile"] == str(PATHS.pki / "ca.crt")
    [addresses] = [plugin["ipam"] for plugin in json.loads(SECOND["cni/10-localkube.conflist"])["plugins"]]
    assert addresses["ranges"] == [[{"subnet": "10.244.1.0/24", "rangeStart": "10.244.1.10"}]]
    assert addresses["dataDir"] not in FIRST["cni/10-localkube.conflist"]


def test_images_are_pulled_from_the_same_store_under_an_address_that_the_namespace_reaches():
    one, two = json.loads(FIRST["registry.json"]), json.loads(SECOND["registry.json"])
    assert one["storage"] == two["storage"]
    assert two["http"]["addr"] == "10.244.0.2:5000"
    assert "http://10.244.0.2:5000" in SECOND["certs.d/_default/hosts.toml"]
    assert str(PATHS.images) not in SECOND["containerd.toml"]


def test_every_component_runs_in_the_namespace_and_is_ended_with_the_cluster():
    mine = [part for wave in second.waves(PATHS, Path("/bin"), "/usr/bin/containerd") for part in wave]
    theirs = components.waves(PATHS, Programs(Path("/bin"), "/usr/bin/containerd", Path("/clone")))
    names = {part.name for part in mine}
    assert {part.argv[:2] for part in mine} == {("nsenter", "--net=/run/netns/dormouse-2")}
    assert names == {"containerd-2", "registry-2", "kubelet-2", "kube-proxy-2"}
    assert not names & {part.name for wave in theirs for part in wave}
    order = [name for group in teardown.stop_groups(names) for name in group]
    assert order.index("kubelet-2") < order.index("containerd-2")
    assert names == set(order)


def test_a_daemon_of_the_second_node_whose_pid_file_was_lost_is_found():
    config_file = str(PATHS.second.etc / "kubelet.json").encode()
    assert leftovers.is_stray([b"/bin/kubelet", b"--config=" + config_file], PATHS)
    assert not leftovers.is_stray([b"/bin/kubelet", b"--config=/cache/localkube-of-another/second/state/x"], PATHS)


def test_the_wish_for_two_nodes_dies_with_the_cluster(tmp_path):
    paths = Paths(tmp_path)
    assert not second.is_wanted(paths)
    second.want(paths)
    assert second.is_wanted(paths)
    assert any((paths.state / "two-nodes").is_relative_to(folder) for folder in teardown._folders(paths, purge=False))


def test_its_containers_get_a_group_of_their_own_below_the_clusters(tmp_path):
    for name in ("memory", "cpuset"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    cgroups.ensure(tmp_path)
    cgroups.ensure(tmp_path, below="node2")
    assert (tmp_path / "memory" / spec.CGROUP / "node2").is_dir()
    assert tmp_path / "cpuset" / spec.CGROUP / "node2" in cgroups.groups(tmp_path)


def test_its_kubelet_may_only_be_itself():
    users = {subject.file: subject for subject in (*pki.USERS, *pki.SERVERS)}
    assert users["kubelet-2"].user == "system:node:localkube-2" != users["kubelet"].user
    assert users["kubelet-2-serving"].hosts == ("10.244.0.2", "localkube-2")


def test_more_than_two_nodes_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["up", "--nodes", "3"])
    assert "--nodes: invalid choice: 3" in capsys.readouterr().err
