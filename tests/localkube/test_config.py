"""What the rendered files promise: isolation from the world, and settings that proved necessary."""

import json
import tomllib
from pathlib import Path

import pytest

from localkube import components, config, manifests, second, spec
from localkube.config import Credentials
from localkube.spec import Paths

PATHS = Paths(Path("/cache/localkube"))
PROGRAMS = components.Programs(Path("/bin-of-ours"), "/usr/bin/containerd", Path("/clone"))


@pytest.fixture
def files():
    return config.files(PATHS, runc="/usr/sbin/runc", cni_bin="/usr/lib/cni")


@pytest.fixture
def all_components():
    return [component for wave in components.waves(PATHS, PROGRAMS) for component in wave]


def flags_of(all_components, name):
    component = next(component for component in all_components if component.name == name)
    return dict(flag.removeprefix("--").partition("=")[::2] for flag in component.argv[1:])


def test_every_image_name_resolves_to_the_loopback_registry_and_nowhere_else(files):
    mirror = tomllib.loads(files["certs.d/_default/hosts.toml"])
    assert mirror["server"] == "http://127.0.0.1:5000"
    assert list(mirror["host"]) == ["http://127.0.0.1:5000"]
    assert "push" not in mirror["host"]["http://127.0.0.1:5000"]["capabilities"]


def test_containerd_gives_layers_back_once_unpacked_and_works_without_the_right_to_lower_oom_scores(files):
    rendered = tomllib.loads(files["containerd.toml"])
    cri = rendered["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["containerd"]["discard_unpacked_layers"] is True
    assert cri["restrict_oom_score_adj"] is True
    assert cri["registry"]["config_path"] == "/cache/localkube/state/etc/certs.d"


def test_all_of_containerds_state_lies_in_our_folder(files):
    rendered = tomllib.loads(files["containerd.toml"])
    runc = rendered["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["runc"]["options"]
    for place in (rendered["root"], rendered["state"], rendered["grpc"]["address"], runc["Root"]):
        assert place.startswith("/cache/localkube/")


def test_a_path_with_a_quote_does_not_break_the_toml():
    paths = Paths(Path('/odd "cache"/localkube'))
    rendered = tomllib.loads(config.containerd(paths, runc="/r", cni_bin="/c"))
    assert rendered["root"] == '/odd "cache"/localkube/images'


def test_the_kubelet_runs_on_old_cgroups_accepts_imported_images_and_never_collects_images_for_room(files):
    kubelet = json.loads(files["kubelet.json"])
    assert kubelet["failCgroupV1"] is False
    assert kubelet["imagePullCredentialsVerificationPolicy"] == "NeverVerify"
    assert kubelet["imageGCHighThresholdPercent"] == 100
    assert kubelet["authentication"]["anonymous"]["enabled"] is False
    assert kubelet["authorization"]["mode"] == "Webhook"
    assert kubelet["makeIPTablesUtilChains"] is False


def test_the_pod_network_masquerades_nothing_and_uses_the_nodes_bridge(files):
    (bridge,) = json.loads(files["cni/10-localkube.conflist"])["plugins"]
    assert bridge["ipMasq"] is False
    assert bridge["bridge"] == spec.BRIDGE


def test_kube_proxy_leaves_the_hosts_conntrack_limits_alone(files):
    conntrack = json.loads(files["kube-proxy.json"])["conntrack"]
    assert (conntrack["maxPerCore"], conntrack["min"]) == (0, None)


def test_the_audit_log_has_every_write_and_no_read(files):
    first, rest = json.loads(files["audit-policy.json"])["rules"]
    assert first["level"] == "Metadata"
    assert {"create", "update", "patch", "delete", "deletecollection"} == set(first["verbs"])
    assert rest == {"level": "None"}


def test_the_registry_listens_on_loopback_only(files):
    assert json.loads(files["registry.json"])["http"]["addr"].startswith("127.0.0.1:")


def test_no_component_listens_beyond_loopback_and_the_nodes_bridge(all_components):
    hosts = {host for component in all_components for host, _ in component.listens}
    assert hosts == {"127.0.0.1", spec.NODE_IP}


def test_no_two_components_share_an_address(all_components):
    addresses = [address for component in all_components for address in component.listens]
    assert len(addresses) == len(set(addresses))


def test_the_api_server_knows_nobody_without_credentials_and_checks_rights_and_pod_security(all_components):
    flags = flags_of(all_components, "kube-apiserver")
    assert flags["anonymous-auth"] == "false"
    assert flags["authorization-mode"] == "Node,RBAC"
    assert "PodSecurity" in flags["enable-admission-plugins"].split(",")
    assert flags["audit-log-path"] == "/cache/localkube/log/audit.log"


def test_etcd_serves_only_clients_with_a_certificate(all_components):
    flags = flags_of(all_components, "etcd")
    assert flags["client-cert-auth"] == "true"
    assert flags["listen-client-urls"] == "https://127.0.0.1:2379"


def test_every_component_has_its_place_in_the_order_of_ending(all_components):
    ending = [name for group in components.STOP_ORDER for name in group]
    second_node = [part.name for wave in second.waves(PATHS, Path("/bin"), "containerd") for part in wave]
    assert sorted(ending) == sorted([*(component.name for component in all_components), *second_node])


def test_a_kubeconfig_is_complete_in_itself():
    text = config.kubeconfig("me", Credentials(b"CA", b"CERT", b"KEY"))
    parsed = json.loads(text)
    assert parsed["users"][0]["user"] == {"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}
    assert parsed["clusters"][0]["cluster"]["server"] == "https://10.244.0.1:6443"
    assert parsed["current-context"] == parsed["contexts"][0]["name"]


def test_the_default_storage_class_is_served_by_our_provisioner():
    (storage,) = [value for value in manifests.bootstrap() if value["kind"] == "StorageClass"]
    assert storage["provisioner"] == spec.PROVISIONER
    assert storage["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true"


def test_the_provisioner_may_touch_volumes_and_nothing_else():
    roles = {value["metadata"]["name"]: value for value in manifests.bootstrap() if value["kind"] == "ClusterRole"}
    rules = roles["localkube:provisioner"]["rules"]
    writing = [rule["resources"] for rule in rules if set(rule["verbs"]) - {"list", "watch"}]
    assert writing == [["persistentvolumes"]]
