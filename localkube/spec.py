"""The nouns: where everything lies, which addresses and names the cluster has. Knows no process and no file content."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KUBERNETES_VERSION = "v1.36.3"

NODE_NAME = "localkube"
BRIDGE = "dormouse0"
BRIDGE_MAC = "0a:58:0a:f4:00:01"
CGROUP = "dormouse"  # under every cgroup hierarchy; pods live below it
CLUSTER_NAME = "localkube"
NETWORK_NAME = "dormouse"

SECOND_NAME = "localkube-2"  # of `up --nodes 2`
SECOND_IP = "10.244.0.2"
NODE_IP = "10.244.0.1"  # of the bridge: the node's, the API server's and the name server's address
POD_CIDR = "10.244.0.0/24"
FIRST_POD_IP = "10.244.0.10"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
API_PORT = 6443
REGISTRY = "127.0.0.1:5000"
DNS_DOMAIN = "cluster.local"

PAUSE_IMAGE = "localkube.internal/pause:1"
PROVISIONER = "localkube.dormouse.dev/provisioner"
STORAGE_CLASS = "dormouse-local"


@dataclass(frozen=True, slots=True)
class Paths:
    """Everything localkube keeps. `root` is DORMOUSE_CACHE/localkube.

    Three lifetimes: `bin`, `go` and `registry` outlive the cluster; `images` (containerd's store) outlives it too
    unless it is purged; `state` dies with the cluster.
    """

    root: Path

    @property
    def bin_root(self) -> Path:
        """One folder of binaries per digest of the Go sources."""
        return self.root / "bin"

    @property
    def go(self) -> Path:
        """Module and build cache, present only while building, and a private Go toolchain if one was needed."""
        return self.root / "go"

    @property
    def second(self) -> Paths:
        """The same for what the second node has of its own."""
        return Paths(self.root / "second")

    @property
    def extras(self) -> Path:
        """One folder per program that only some tests need, with the digest of its pins."""
        return self.root / "extras"

    @property
    def registry(self) -> Path:
        """Blobs and manifests of the loopback registry."""
        return self.root / "registry"

    @property
    def images(self) -> Path:
        """The persistent part of containerd: image contents and snapshots."""
        return self.root / "images"

    @property
    def state(self) -> Path:
        """All that belongs to one life of the cluster."""
        return self.root / "state"

    @property
    def logs(self) -> Path:
        """One log per component, kept after `down` until the next fresh `up`."""
        return self.root / "log"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON object per line."""
        return self.logs / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        """Credentials of the cluster's administrator."""
        return self.root / "kubeconfig"

    @property
    def etc(self) -> Path:
        """Rendered configuration files."""
        return self.state / "etc"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def run(self) -> Path:
        """Sockets, ready marks, containerd's volatile state."""
        return self.state / "run"

    @property
    def pids(self) -> Path:
        """One pid file per component."""
        return self.state / "pids"

    @property
    def stand_ins(self) -> Path:
        """A folder for each GPU that is not there: pods that mount it share them."""
        return self.state / "stand-ins"

    @property
    def var(self) -> Path:
        """Data of etcd and kubelet."""
        return self.state / "var"

    @property
    def volumes(self) -> Path:
        """One folder per provisioned PersistentVolume."""
        return self.state / "volumes"

    @property
    def containerd_socket(self) -> Path:
        """Where containerd listens."""
        return self.run / "containerd.sock"

    @property
    def provisioner_ready(self) -> Path:
        """Made by the provisioner after its first look at the cluster."""
        return self.run / "provisioner.ready"

    @property
    def policies_ready(self) -> Path:
        """Made by who enforces NetworkPolicies after the first table."""
        return self.run / "policies.ready"

    @property
    def host_record(self) -> Path:
        """What the sysctls were before; written before the first is changed."""
        return self.root / "host.json"


API_URL = f"https://{NODE_IP}:{API_PORT}"
