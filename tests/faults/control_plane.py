"""A real API server with its etcd, and nothing else: no kubelet, no scheduler. Ports and folder are its own."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from localkube import pki
from localkube.config import audit_policy
from localkube.spec import Paths
from tests.faults.programs import Program, clean_environment
from tests.ports import free_port

USERS = ("operator-a", "operator-b", "operator-of-one", "operator-of-all", "gateway", "controller-manager")
ADMIN = "admin"
_START_S = 180.0
_SERVICE_CIDR = "10.199.0.0/16"
# Only what a cluster always has for us: dependents of what is deleted go, and so do the contents of namespaces.
_CONTROLLERS = "namespace-controller,garbage-collector-controller"


class ControlPlane:
    """etcd, kube-apiserver and, once asked for, the two controllers that remove things."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        """Take an empty folder, and where localkube built its programs."""
        self.folder = folder
        self._binaries = binaries
        self._paths = Paths(folder / "localkube")
        self._etcd_port, self.port = free_port(), free_port()
        self._programs: dict[str, Program] = {}

    def __repr__(self) -> str:
        """Show the address and what runs."""
        return f"ControlPlane({self.url}: {', '.join(self._programs)})"

    @property
    def url(self) -> str:
        """Return the API server's address."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """Return the file that its certificate is checked with."""
        return self._paths.pki / "ca.crt"

    def start(self) -> None:
        """Start etcd and the API server, and wait until it is ready."""
        self._paths.root.mkdir(parents=True)
        pki.ensure(self._paths)
        users = [(ADMIN, "system:masters"), *((user, "") for user in USERS)]
        tokens = [f'{self.token(user)},{user},{user},"{group}"' for user, group in users]
        (self.folder / "tokens.csv").write_text("\n".join(tokens), "utf-8")
        (self.folder / "audit-policy.json").write_text(audit_policy(), "utf-8")
        self._run("etcd", self._etcd_flags())
        self._run("kube-apiserver", self._api_server_flags())
        self._wait_ready("kube-apiserver", f"{self.url}/readyz")

    def start_controllers(self) -> None:
        """Start the controllers that remove things; safe if they run."""
        if "kube-controller-manager" in self._programs:
            return
        port = free_port()
        flags = {
            "kubeconfig": self.kubeconfig(ADMIN),
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "leader-elect": "false",
            "controllers": _CONTROLLERS,
            "kube-api-qps": 500,
            "kube-api-burst": 1000,
        }
        self._run("kube-controller-manager", flags)
        self._wait_ready("kube-controller-manager", f"https://127.0.0.1:{port}/healthz")

    def end(self) -> None:
        """End everything, what was started last first."""
        for program in reversed(self._programs.values()):
            program.end()

    def token(self, user: str) -> str:
        """Return a user's token."""
        return f"token-of-{user}"

    def kubeconfig(self, user: str, url: str = "") -> Path:
        """Write and return a kubeconfig for a user, at another address if there is something in between."""
        url = url or self.url
        cluster: dict[str, Any] = {"server": url}
        if url.startswith("https"):
            cluster["certificate-authority"] = str(self.ca)
        value = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": user}}],
        }
        path = self.folder / f"{user}-{url.rpartition(':')[2]}.kubeconfig"
        path.write_text(json.dumps(value), "utf-8")
        return path

    def audit(self) -> Iterator[Mapping[str, Any]]:
        """Yield the audit log: every write that was answered, in order. The log is written before the answer."""
        with (self.folder / "audit.log").open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)

    def compact(self) -> None:
        """Have etcd forget all history up to now: every watch that is not up to date gets 410 Gone."""
        status = self._etcd("maintenance/status")
        self._etcd("kv/compaction", {"revision": status["header"]["revision"], "physical": True})

    def _etcd(self, call: str, body: Mapping[str, Any] | None = None) -> Any:
        """Make one call through etcd's JSON gateway."""
        url = f"http://127.0.0.1:{self._etcd_port}/v3/{call}"
        request = urllib.request.Request(url, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=90) as answer:
            return json.load(answer)

    def _etcd_flags(self) -> Mapping[str, object]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{free_port()}"
        return {
            "name": "faults",
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"faults={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }

    def _api_server_flags(self) -> Mapping[str, object]:
        certificates = self._paths.pki
        return {
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self.port,
            "etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "service-cluster-ip-range": _SERVICE_CIDR,
            "authorization-mode": "RBAC",
            "anonymous-auth": "false",
            "token-auth-file": self.folder / "tokens.csv",
            "disable-admission-plugins": "ServiceAccount",  # no controller makes the default accounts here
            "endpoint-reconciler-type": "none",  # its own Service would not take a loopback address
            "tls-cert-file": certificates / "apiserver.crt",
            "tls-private-key-file": certificates / "apiserver.key",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": certificates / "service-accounts.pub",
            "service-account-signing-key-file": certificates / "service-accounts.key",
            "audit-policy-file": self.folder / "audit-policy.json",
            "audit-log-path": self.folder / "audit.log",
        }

    def _run(self, name: str, flags: Mapping[str, object]) -> None:
        argv = [self._binaries / name, *(f"--{flag}={value}" for flag, value in flags.items())]
        self._programs[name] = Program(argv, log=self.folder / f"{name}.log", env=clean_environment())

    def _wait_ready(self, name: str, url: str) -> None:
        """Ask until the answer is 200; fail with the log's end if the program ends or takes too long."""
        program, deadline = self._programs[name], time.monotonic() + _START_S
        while not self._answers(url):
            assert program.exit_code is None, f"{name} ended:\n{program.tail()}"
            assert time.monotonic() < deadline, f"{name} is not ready after {_START_S:.0f} s:\n{program.tail()}"
            time.sleep(0.1)

    def _answers(self, url: str) -> bool:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # both are on loopback
        https = urllib.request.HTTPSHandler(context=context)
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token(ADMIN)}"})
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
            with opener.open(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def render_rights(
    helm: Path, chart: Path, namespace: str, *, component: str = "operator", watched: Sequence[str] | None = None
) -> str:
    """Return what the chart gives an operator, or another component, as YAML; it serves its namespace, or `watched`."""
    names = json.dumps([namespace] if watched is None else list(watched))
    place = ["--namespace", namespace, "--kube-version", "1.36.0", "--set-json", f"watch.namespaces={names}"]
    command = [str(helm), "template", "dormouse", str(chart), *place, "--show-only", f"templates/rbac-{component}.yaml"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment()).stdout
