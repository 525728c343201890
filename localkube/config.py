"""Render every configuration file. Pure: values in, text out; JSON is used wherever its reader also takes YAML."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localkube import spec
from localkube.spec import Paths

KUBELET_PORT = 10250
WRITES = ["create", "update", "patch", "delete", "deletecollection"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """PEM texts that one client shows to the API server."""

    ca: bytes
    certificate: bytes
    key: bytes


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def kubeconfig(user: str, credentials: Credentials) -> str:
    """Return a kubeconfig with everything embedded, so that the file can be handed around alone."""

    def data(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    name = spec.CLUSTER_NAME
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [
                {
                    "name": name,
                    "cluster": {"server": spec.API_URL, "certificate-authority-data": data(credentials.ca)},
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": data(credentials.certificate),
                        "client-key-data": data(credentials.key),
                    },
                }
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        }
    )


def kubelet(paths: Paths) -> str:
    """Return the kubelet's configuration."""
    pki = paths.pki
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": spec.NODE_IP,
            "port": KUBELET_PORT,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": 10248,
            "readOnlyPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True, "cacheTTL": "30s"},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "kubelet-serving.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet-serving.key"),
            "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{spec.CGROUP}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": ["pods"],
            "failCgroupV1": False,  # many small machines still have the old hierarchy
            "failSwapOn": False,
            "clusterDNS": [spec.NODE_IP],
            "clusterDomain": spec.DNS_DOMAIN,
            "resolvConf": str(paths.etc / "resolv.conf"),
            "podLogsDir": str(paths.logs / "pods"),
            "podCIDR": spec.POD_CIDR,
            "volumePluginDir": str(paths.var / "volume-plugins"),
            # A disk that is 80 % full is normal on a developer's machine, so images are never collected for room.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1Gi",
                "imagefs.available": "1Gi",
                "nodefs.inodesFree": "1%",
            },
            "serializeImagePulls": False,
            "registerNode": True,
            "maxPods": 110,
            "shutdownGracePeriod": "0s",
            "makeIPTablesUtilChains": False,  # they would stay behind
            # Imported images have no pull record, and the same image may be known by two names.
            "imagePullCredentialsVerificationPolicy": "NeverVerify",
        }
    )


def kube_proxy(paths: Paths) -> str:
    """Return kube-proxy's configuration; the conntrack limits of the host are left alone."""
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(paths.pki / "proxy.conf")},
            "mode": "nftables",
            "clusterCIDR": spec.POD_CIDR,
            "bindAddress": spec.NODE_IP,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "conntrack": {"maxPerCore": 0, "min": None, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "nodePortAddresses": [spec.POD_CIDR],
            "nftables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        }
    )


def audit_policy() -> str:
    """Return the audit policy: who wrote what, when and how it was answered; nothing about reads."""
    return _json(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "verbs": WRITES}, {"level": "None"}],
        }
    )


def cni(paths: Paths) -> str:
    """Return the pod network: one bridge, which is the node's; without masquerading, whose chains would stay behind."""
    addresses = {
        "type": "host-local",
        "dataDir": str(paths.run / "cni-addresses"),
        "ranges": [[{"subnet": spec.POD_CIDR, "rangeStart": spec.FIRST_POD_IP}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": spec.BRIDGE, "isGateway": True, "ipMasq": False, "hairpinMode": True}
    plugins = [{**bridge, "ipam": addresses}]
    return _json({"cniVersion": "0.4.0", "name": spec.NETWORK_NAME, "plugins": plugins})


def containerd(paths: Paths, *, runc: str, cni_bin: str) -> str:
    """Return containerd's configuration (its version 2 format, which 1.6 and later read)."""
    unused = [
        *(f"io.containerd.snapshotter.v1.{name}" for name in ("btrfs", "zfs", "aufs", "devmapper")),
        "io.containerd.tracing.processor.v1.otlp",
        "io.containerd.internal.v1.tracing",
    ]
    return f"""version = 2
root = {json.dumps(str(paths.images))}
state = {json.dumps(str(paths.run / "containerd"))}
oom_score = 0
disabled_plugins = {json.dumps(unused)}

[grpc]
  address = {json.dumps(str(paths.containerd_socket))}

[plugins."io.containerd.internal.v1.opt"]
  path = {json.dumps(str(paths.images / "opt"))}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {json.dumps(spec.PAUSE_IMAGE)}
  disable_apparmor = true
  # A root without CAP_SYS_RESOURCE may not lower an OOM score, and every pod would fail.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = {json.dumps(cni_bin)}
  conf_dir = {json.dumps(str(paths.etc / "cni"))}

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
  # Layers are kept once, unpacked; packed they lie in the registry.
  discard_unpacked_layers = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = {json.dumps(runc)}
  Root = {json.dumps(str(paths.run / "runc"))}
  SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = {json.dumps(str(paths.etc / "certs.d"))}
"""


def registry_mirror(address: str = spec.REGISTRY) -> str:
    """Return containerd's host file for every registry name: no pull can leave this machine."""
    url = f"http://{address}"
    return f'server = "{url}"\n\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'


def registry(paths: Paths) -> str:
    """Return the loopback registry's configuration; deleting is on, so that old tags can go."""
    return _json(
        {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(paths.registry)},
                "delete": {"enabled": True},
                "maintenance": {"uploadpurging": {"enabled": True, "age": "1h", "interval": "1h", "dryrun": False}},
            },
            "http": {"addr": spec.REGISTRY, "secret": "loopback-only"},
        }
    )


def corefile(paths: Paths) -> str:
    """Return CoreDNS' configuration: the cluster's names, and nothing of the world outside."""
    return f""".:53 {{
    bind {spec.NODE_IP}
    errors
    health 127.0.0.1:10254
    ready 127.0.0.1:10255
    cache 5
    kubernetes {spec.DNS_DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {paths.pki / "coredns.conf"} {spec.CLUSTER_NAME}
        pods insecure
        ttl 5
    }}
}}
"""


def resolv_conf() -> str:
    """Return the name server of pods that ask for the node's."""
    return f"nameserver {spec.NODE_IP}\n"


def files(paths: Paths, *, runc: str, cni_bin: str) -> Mapping[str, str]:
    """Return every file under `paths.etc`, by its name there."""
    return {
        "kubelet.json": kubelet(paths),
        "kube-proxy.json": kube_proxy(paths),
        "audit-policy.json": audit_policy(),
        "cni/10-localkube.conflist": cni(paths),
        "containerd.toml": containerd(paths, runc=runc, cni_bin=cni_bin),
        "certs.d/_default/hosts.toml": registry_mirror(),
        "registry.json": registry(paths),
        "Corefile": corefile(paths),
        "resolv.conf": resolv_conf(),
    }
