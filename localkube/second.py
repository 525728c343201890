"""The second node of `up --nodes 2`: a kubelet and a containerd of its own in a network namespace on the same machine.

    host     dormouse0 10.244.0.1/24, pods of node 1; route 10.244.1.0/24 via 10.244.0.2
      | veth dormouse2 - eth0 10.244.0.2/24 (the node's address)
    netns    dormouse0 10.244.1.1/24, pods of node 2

Only the network is apart. Device plugins talk to the kubelet that started last: their folder is fixed in the kubelet.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from localkube import cgroups, config, host, spec
from localkube.components import Component, Wave
from localkube.errors import HostError
from localkube.probes import Http, UnixSocket
from localkube.spec import Paths

NETNS = "dormouse-2"
# The command that only changes the network; `ip netns exec` would hide the control groups.
ENTER = ("nsenter", f"--net=/run/netns/{NETNS}", "--")
VETH = "dormouse2"
POD_CIDR = "10.244.1.0/24"
FIRST_POD_IP = "10.244.1.10"
ALL_PODS = "10.244.0.0/16"
REGISTRY = f"{spec.SECOND_IP}:5000"
_PREFIX = spec.POD_CIDR.partition("/")[2]


def want(paths: Paths) -> None:
    """Note that this cluster has two nodes, until it ends."""
    paths.state.mkdir(parents=True, exist_ok=True)
    _mark(paths).touch()


def is_wanted(paths: Paths) -> bool:
    """Return whether this cluster has two nodes."""
    return _mark(paths).exists()


def _mark(paths: Paths) -> Path:
    return paths.state / "two-nodes"


def network_exists() -> bool:
    """Return whether the namespace is there."""
    return (Path("/run/netns") / NETNS).exists()


def ensure_network() -> None:
    """Make the namespace, its cable to the bridge, and the routes both ways; safe if they are there."""
    if not network_exists():
        _run("ip", "netns", "add", NETNS)
    if not host.bridge_exists(VETH):
        _run("ip", "link", "add", VETH, "type", "veth", "peer", "name", "eth0", "netns", NETNS)
    _run("ip", "link", "set", VETH, "master", spec.BRIDGE, "up")
    inside = ("ip", "-n", NETNS)
    _run(*inside, "link", "set", "lo", "up")
    _run(*inside, "address", "replace", f"{spec.SECOND_IP}/{_PREFIX}", "dev", "eth0")
    _run(*inside, "link", "set", "eth0", "up")
    _run(*inside, "route", "replace", "default", "via", spec.NODE_IP)
    _run("ip", "route", "replace", POD_CIDR, "via", spec.SECOND_IP, "dev", spec.BRIDGE)
    _run(*ENTER, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")


def remove_network() -> bool:
    """Remove the namespace with everything in it; tell whether there was one."""
    if not network_exists():
        return False
    _run("ip", "netns", "delete", NETNS)
    if host.bridge_exists(VETH):  # it goes with its other end, unless that was never made
        _run("ip", "link", "delete", VETH)
    return True


def _run(*command: str) -> None:
    done = subprocess.run([host.program(command[0]), *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def prepare(paths: Paths, *, runc: str, cni_bin: str) -> None:
    """Make everything that the components of this node find when they start."""
    ensure_network()
    cgroups.ensure(below="node2")
    own = paths.second
    for folder in (own.run, own.var, own.images):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files(paths, runc=runc, cni_bin=cni_bin).items():
        (own.etc / name).parent.mkdir(parents=True, exist_ok=True)
        (own.etc / name).write_text(text, "utf-8")


def files(paths: Paths, *, runc: str, cni_bin: str) -> Mapping[str, str]:
    """Return every configuration file of this node: those of the first one, with what has to differ."""
    own = paths.second
    pki = {"tlsCertFile": str(paths.pki / "kubelet-2-serving.crt")}
    pki |= {"tlsPrivateKeyFile": str(paths.pki / "kubelet-2-serving.key")}
    kubelet = json.loads(config.kubelet(own)) | pki
    kubelet["authentication"]["x509"]["clientCAFile"] = str(paths.pki / "ca.crt")
    kubelet |= {"address": spec.SECOND_IP, "healthzBindAddress": spec.SECOND_IP, "podCIDR": POD_CIDR}
    kubelet |= {"cgroupRoot": f"/{spec.CGROUP}/node2"}
    proxy = json.loads(config.kube_proxy(own))
    proxy["clientConnection"]["kubeconfig"] = str(paths.pki / "proxy.conf")
    proxy |= {"clusterCIDR": ALL_PODS, "bindAddress": spec.SECOND_IP, "healthzBindAddress": f"{spec.SECOND_IP}:10256"}
    network = json.loads(config.cni(own))
    network["plugins"][0]["ipam"]["ranges"] = [[{"subnet": POD_CIDR, "rangeStart": FIRST_POD_IP}]]
    registry = json.loads(config.registry(paths))
    registry["http"]["addr"] = REGISTRY
    return {
        "kubelet.json": json.dumps(kubelet),
        "kube-proxy.json": json.dumps(proxy),
        "cni/10-localkube.conflist": json.dumps(network),
        "registry.json": json.dumps(registry),
        "containerd.toml": config.containerd(own, runc=runc, cni_bin=cni_bin),
        "certs.d/_default/hosts.toml": config.registry_mirror(REGISTRY),
        "resolv.conf": config.resolv_conf(),
    }


def waves(paths: Paths, binaries: Path, containerd: str) -> tuple[Wave, Wave]:
    """Return the components of this node: what runs containers, then what orders them."""
    return (
        (_containerd(paths, containerd), _registry(paths, binaries)),
        (_kubelet(paths, binaries), _kube_proxy(paths, binaries)),
    )


def _component(
    name: str, ready: Http | UnixSocket, *argv: str | Path, env: Mapping[str, str] | None = None
) -> Component:
    """Return a daemon in the namespace. Its addresses are nobody else's, so no clash has to be looked for."""
    return Component(name, (*ENTER, *map(str, argv)), ready, env=env or {})


def _containerd(paths: Paths, containerd: str) -> Component:
    ready = UnixSocket(paths.second.containerd_socket)
    return _component("containerd-2", ready, containerd, "--config", paths.second.etc / "containerd.toml")


def _registry(paths: Paths, binaries: Path) -> Component:
    """The same images again: a pull from inside the namespace does not reach the host's loopback address."""
    argv = (binaries / "registry", "serve", paths.second.etc / "registry.json")
    return _component("registry-2", Http(f"http://{REGISTRY}/v2/"), *argv, env={"OTEL_TRACES_EXPORTER": "none"})


def _kubelet(paths: Paths, binaries: Path) -> Component:
    flags = (
        f"--config={paths.second.etc / 'kubelet.json'}",
        f"--kubeconfig={paths.pki / 'kubelet-2.conf'}",
        f"--root-dir={paths.second.var / 'kubelet'}",
        f"--hostname-override={spec.SECOND_NAME}",
        f"--node-ip={spec.SECOND_IP}",
    )
    return _component("kubelet-2", Http(f"http://{spec.SECOND_IP}:10248/healthz"), binaries / "kubelet", *flags)


def _kube_proxy(paths: Paths, binaries: Path) -> Component:
    flags = (f"--config={paths.second.etc / 'kube-proxy.json'}", f"--hostname-override={spec.SECOND_NAME}")
    ready = Http(f"http://{spec.SECOND_IP}:10256/healthz")
    return _component("kube-proxy-2", ready, binaries / "kube-proxy", *flags)
