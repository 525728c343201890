"""The components in the order they start: each with its command line, its readiness and the addresses it needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localkube import spec
from localkube.probes import FileExists, Http, Probe, UnixSocket
from localkube.spec import Paths

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Component:
    """One daemon."""

    name: str
    argv: tuple[str, ...]
    ready: Probe
    listens: tuple[Address, ...] = ()  # checked before it starts, so that a clash is named
    timeout_s: float = 60.0  # from start to ready
    env: Mapping[str, str] = field(default_factory=dict)  # added to ours


Wave = tuple[Component, ...]


def _flags(**values: object) -> tuple[str, ...]:
    """Return --name=value for each, with dashes for underscores."""
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in values.items())


def _registry(paths: Paths, binaries: Path) -> Component:
    host, _, port = spec.REGISTRY.partition(":")
    return Component(
        "registry",
        (str(binaries / "registry"), "serve", str(paths.etc / "registry.json")),
        Http(f"http://{spec.REGISTRY}/v2/"),
        ((host, int(port)),),
        env={"OTEL_TRACES_EXPORTER": "none"},
    )


def _etcd(paths: Paths, binaries: Path) -> Component:
    pki, url, peers, metrics = paths.pki, *(f"{s}://127.0.0.1:{p}" for s, p in _ETCD_ADDRESSES)
    flags = _flags(
        name=spec.NODE_NAME,
        data_dir=paths.var / "etcd",
        listen_client_urls=url,
        advertise_client_urls=url,
        listen_peer_urls=peers,
        initial_advertise_peer_urls=peers,
        initial_cluster=f"{spec.NODE_NAME}={peers}",
        listen_metrics_urls=metrics,
        client_cert_auth="true",
        trusted_ca_file=pki / "ca.crt",
        cert_file=pki / "etcd.crt",
        key_file=pki / "etcd.key",
        log_level="warn",
    )
    # A test cluster need not survive a power cut, and waiting for the disk is most of what etcd does.
    argv = (str(binaries / "etcd"), "--unsafe-no-fsync", *flags)
    return Component("etcd", argv, Http(f"{metrics}/health"), _loopback(2379, 2380, 2381))


_ETCD_ADDRESSES = (("https", 2379), ("http", 2380), ("http", 2381))


def _loopback(*ports: int) -> tuple[Address, ...]:
    return tuple(("127.0.0.1", port) for port in ports)


def _containerd(paths: Paths, containerd: str) -> Component:
    argv = (containerd, "--config", str(paths.etc / "containerd.toml"))
    return Component("containerd", argv, UnixSocket(paths.containerd_socket))


def _api_server(paths: Paths, binaries: Path) -> Component:
    pki = paths.pki
    flags = _flags(
        bind_address=spec.NODE_IP,
        advertise_address=spec.NODE_IP,
        secure_port=spec.API_PORT,
        service_cluster_ip_range=spec.SERVICE_CIDR,
        allow_privileged="true",
        anonymous_auth="false",
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction,PodSecurity,MutatingAdmissionPolicy,ValidatingAdmissionPolicy",
        client_ca_file=pki / "ca.crt",
        tls_cert_file=pki / "apiserver.crt",
        tls_private_key_file=pki / "apiserver.key",
        etcd_servers="https://127.0.0.1:2379",
        etcd_cafile=pki / "ca.crt",
        etcd_certfile=pki / "apiserver-etcd.crt",
        etcd_keyfile=pki / "apiserver-etcd.key",
        kubelet_certificate_authority=pki / "ca.crt",
        kubelet_client_certificate=pki / "apiserver-kubelet.crt",
        kubelet_client_key=pki / "apiserver-kubelet.key",
        kubelet_preferred_address_types="InternalIP",
        service_account_issuer=f"https://kubernetes.default.svc.{spec.DNS_DOMAIN}",
        service_account_key_file=pki / "service-accounts.pub",
        service_account_signing_key_file=pki / "service-accounts.key",
        requestheader_client_ca_file=pki / "ca.crt",
        requestheader_allowed_names="front-proxy",
        requestheader_username_headers="X-Remote-User",
        requestheader_group_headers="X-Remote-Group",
        requestheader_extra_headers_prefix="X-Remote-Extra-",
        proxy_client_cert_file=pki / "front-proxy.crt",
        proxy_client_key_file=pki / "front-proxy.key",
        audit_policy_file=paths.etc / "audit-policy.json",
        audit_log_path=paths.audit_log,
        audit_log_maxsize=50,
        audit_log_maxbackup=2,
    )
    ready = Http(f"{spec.API_URL}/readyz", pki / "ca.crt", pki / "admin")
    return Component(
        "kube-apiserver", (str(binaries / "kube-apiserver"), *flags), ready, ((spec.NODE_IP, spec.API_PORT),), 120.0
    )


def _controller_manager(paths: Paths, binaries: Path) -> Component:
    pki = paths.pki
    flags = _flags(
        kubeconfig=pki / "controller-manager.conf",
        bind_address="127.0.0.1",
        leader_elect="false",
        use_service_account_credentials="true",
        root_ca_file=pki / "ca.crt",
        service_account_private_key_file=pki / "service-accounts.key",
        # With the default limits the first service account appears seconds later.
        kube_api_qps=500,
        kube_api_burst=1000,
    )
    argv = (str(binaries / "kube-controller-manager"), *flags)
    return Component("kube-controller-manager", argv, Http("https://127.0.0.1:10257/healthz"), _loopback(10257))


def _scheduler(paths: Paths, binaries: Path) -> Component:
    flags = _flags(kubeconfig=paths.pki / "scheduler.conf", bind_address="127.0.0.1", leader_elect="false")
    argv = (str(binaries / "kube-scheduler"), *flags)
    return Component("kube-scheduler", argv, Http("https://127.0.0.1:10259/healthz"), _loopback(10259))


def _kubelet(paths: Paths, binaries: Path) -> Component:
    flags = _flags(
        config=paths.etc / "kubelet.json",
        kubeconfig=paths.pki / "kubelet.conf",
        root_dir=paths.var / "kubelet",
        hostname_override=spec.NODE_NAME,
        node_ip=spec.NODE_IP,
    )
    listens = (*_loopback(10248), (spec.NODE_IP, 10250))
    return Component("kubelet", (str(binaries / "kubelet"), *flags), Http("http://127.0.0.1:10248/healthz"), listens)


def _kube_proxy(paths: Paths, binaries: Path) -> Component:
    flags = _flags(config=paths.etc / "kube-proxy.json", hostname_override=spec.NODE_NAME)
    argv = (str(binaries / "kube-proxy"), *flags)
    return Component("kube-proxy", argv, Http("http://127.0.0.1:10256/healthz"), _loopback(10249, 10256))


def _coredns(paths: Paths, binaries: Path) -> Component:
    argv = (str(binaries / "coredns"), "-conf", str(paths.etc / "Corefile"))
    listens = ((spec.NODE_IP, 53), *_loopback(10254, 10255))
    return Component("coredns", argv, Http("http://127.0.0.1:10255/ready"), listens)


def _own(paths: Paths, clone: Path, name: str, ready: Path) -> Component:
    """Return one of our own programs."""
    env = {"PYTHONPATH": str(clone), "DORMOUSE_CACHE": str(paths.root.parent)}
    return Component(name, (sys.executable, "-m", "localkube", name), FileExists(ready), env=env)


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs are that the components run."""

    binaries: Path  # our Go builds
    containerd: str
    clone: Path  # the checkout that holds the package localkube


def waves(paths: Paths, programs: Programs) -> tuple[Wave, ...]:
    """Return the components in waves: those of one wave start together, the next wave when all are ready."""
    binaries = programs.binaries
    return (
        (_registry(paths, binaries), _etcd(paths, binaries), _containerd(paths, programs.containerd)),
        (_api_server(paths, binaries),),
        (
            _controller_manager(paths, binaries),
            _scheduler(paths, binaries),
            _kubelet(paths, binaries),
            _kube_proxy(paths, binaries),
            _coredns(paths, binaries),
            _own(paths, programs.clone, "provisioner", paths.provisioner_ready),
            _own(paths, programs.clone, "policies", paths.policies_ready),
        ),
    )


# The kubelet first, so that nothing is started again; what it talks to last.
STOP_ORDER = (
    ("kubelet", "kubelet-2", "kube-proxy", "kube-proxy-2", "coredns", "provisioner", "policies"),
    ("kube-scheduler", "kube-controller-manager"),
    ("kube-apiserver",),
    ("etcd", "registry", "registry-2", "containerd", "containerd-2"),
)
