"""A control plane of the benchmark's own, inside its sandbox: from etcd to KWOK and the workers.

The components, their certificates and their settings are localkube's, kept under a root of the benchmark's own. No
controller manager: nothing here needs one, and what it would take of the processors is not the operator's. The operator
gets the chart's service account and rights, so its requests queue as they would in a cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from bench.fleet import kwok_stages
from bench.fleet.sandbox import POD_CIDR
from localkube import config, pki
from localkube.components import Component, Programs, waves
from localkube.errors import ComponentError
from localkube.host import search_path
from localkube.probes import FileExists, Http
from localkube.progress import Progress
from localkube.spec import KUBERNETES_VERSION, Paths
from localkube.start import run_wave
from tools.bootstrap import ROOT

RELEASE = "dormouse"
NAMESPACE = "dormouse-system"  # of the operator
FLEET = "fleet"  # of the deployments
ACCOUNT = f"{RELEASE}-operator"
OPERATOR_SEED = "the operator's seed of the benchmarks"
GATEWAY_SEED = "the gateways' seed of the benchmarks"
KWOK_ADDRESS = "127.0.0.1:10247"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
MORE_FLAGS = {  # of what is started, in this order; of a flag given twice the last one counts
    "etcd": ("--quota-backend-bytes=8589934592",),
    "kube-apiserver": ("--audit-log-maxsize=4000",),  # one file for the whole run
    "kube-scheduler": ("--kube-api-qps=1000", "--kube-api-burst=2000"),  # its default binds 50 pods a second
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster's programs and its root."""

    paths: Paths
    binaries: Path  # localkube's
    kwok: Path
    workers: str = "bench.fleet.fake_workers"  # the program that answers for the workers of all pods

    @property
    def operator_kubeconfig(self) -> Path:
        """Return what the operator logs in with."""
        return self.paths.state / "operator.kubeconfig"

    @property
    def gateway_kubeconfig(self) -> Path:
        """Return what a gateway logs in with."""
        return self.paths.state / "gateway.kubeconfig"

    @property
    def tokens(self) -> Path:
        """Return the folder of the role tokens."""
        return self.paths.state / "tokens"

    def start(self, num_pods: int, progress: Progress) -> None:
        """Start everything but the operator. Raises LocalkubeError."""
        self._write_files()
        for component in self.components():
            run_wave(self.paths, (component,), progress)
            if component.name == "kube-apiserver":
                self._provision(num_pods)
        run_wave(self.paths, (self._kwok(), self._workers()), progress)
        self._kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        # An admission plugin marks new nodes as not ready; who takes that back is the controller manager.
        self._kubectl("taint", "node", "--all", "node.kubernetes.io/not-ready-")

    def _write_files(self) -> None:
        for folder in (self.paths.run, self.paths.var, self.paths.logs, self.paths.etc, self.tokens):
            folder.mkdir(parents=True, exist_ok=True)
        pki.ensure(self.paths)
        (self.paths.etc / "audit-policy.json").write_text(audit_policy(), "utf-8")
        (self.paths.etc / "kwok.yaml").write_text(kwok_stages.configuration(), "utf-8")
        for name, text in (("operator-seed", OPERATOR_SEED), ("gateway-seed", GATEWAY_SEED)):
            (self.tokens / name).write_text(text, "utf-8")

    def components(self) -> list[Component]:
        """Return the components of localkube that are started one after the other, with flags of our own behind."""
        programs = Programs(self.binaries, "containerd", ROOT)  # containerd is not started
        known = {component.name: component for wave in waves(self.paths, programs) for component in wave}
        return [replace(known[name], argv=(*known[name].argv, *flags)) for name, flags in MORE_FLAGS.items()]

    def _kwok(self) -> Component:
        flags = (
            f"--kubeconfig={self.paths.pki / 'admin.conf'}",
            f"--config={self.paths.etc / 'kwok.yaml'}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--server-address={KWOK_ADDRESS}",
            "--node-ip=127.0.0.1",
            f"--cidr={POD_CIDR}",
            "--v=WARN",
        )
        return Component("kwok", (str(self.kwok), *flags), Http(f"http://{KWOK_ADDRESS}/healthz"))

    def _workers(self) -> Component:
        ready = self.paths.run / "workers.ready"
        argv = (sys.executable, "-m", self.workers, str(self.paths.pki / "admin.conf"), str(ready))
        folders = (str(ROOT / part) for part in ("api", "kube", "operator", "worker_image", "."))
        return Component("workers", argv, FileExists(ready), env={"PYTHONPATH": os.pathsep.join(folders)})

    def _provision(self, num_pods: int) -> None:
        """Apply the CRD, namespaces, accounts, rights and nodes, and let the operator log in."""
        self._apply([*_namespaces(), *kwok_stages.nodes(num_pods, POD_CIDR)])
        self._kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        self._kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        self._kubectl("get", "inferencedeployments")  # asks again while the storage of the new kind is prepared
        self._apply(self._rights())
        self._let_in(ACCOUNT, self.operator_kubeconfig)
        self._let_in(f"{RELEASE}-gateway", self.gateway_kubeconfig)

    def _let_in(self, account: str, kubeconfig: Path) -> None:
        """Write a kubeconfig with which this account of the chart logs in."""
        token = self._kubectl("create", "token", account, f"--namespace={NAMESPACE}", "--duration=24h").strip()
        admin = json.loads((self.paths.pki / "admin.conf").read_text("utf-8"))
        kubeconfig.write_text(with_token(admin, token), "utf-8")

    def _rights(self) -> list[dict[str, Any]]:
        """Return the operator's account and rights as the chart renders them."""
        chart = str(ROOT / "charts" / "dormouse")
        rendered = self._run(
            "helm", "template", RELEASE, chart, f"--namespace={NAMESPACE}", f"--kube-version={KUBERNETES_VERSION}"
        )
        documents = [document for document in yaml.safe_load_all(rendered) if document]
        return [document for document in documents if document["kind"] in RIGHTS]

    def _apply(self, documents: list[dict[str, Any]]) -> None:
        bundle = {"apiVersion": "v1", "kind": "List", "items": documents}
        self._kubectl("apply", "--server-side", "-f", "-", text=json.dumps(bundle))

    def _kubectl(self, *arguments: str, text: str = "") -> str:
        """Run kubectl as the administrator and return what it prints. Raises ComponentError."""
        return self._run("kubectl", *arguments, text=text)

    def _run(self, program: str, *arguments: str, text: str = "") -> str:
        env = {"PATH": search_path(), "HOME": str(self.paths.state), "KUBECONFIG": str(self.paths.pki / "admin.conf")}
        command = [str(self.binaries / program), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=env)
        if done.returncode:
            raise ComponentError(f"`{program} {' '.join(arguments)}` failed ({done.returncode}): {done.stderr.strip()}")
        return done.stdout


def audit_policy() -> str:
    """Return the audit policy: the operator's writes and nothing else."""
    user = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
    rules = [{"level": "Metadata", "users": [user], "verbs": config.WRITES}, {"level": "None"}]
    head = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
    return json.dumps({**head, "rules": rules})


def with_token(kubeconfig: Mapping[str, Any], token: str) -> str:
    """Return the kubeconfig with another user: the one of a token."""
    user = {"name": kubeconfig["users"][0]["name"], "user": {"token": token}}
    return json.dumps({**kubeconfig, "users": [user]})


def _namespaces() -> list[dict[str, Any]]:
    """Return both namespaces with the account that pods have when they name none."""
    names = (NAMESPACE, FLEET)
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    return [*spaces, *({**account, "metadata": {"name": "default", "namespace": name}} for name in names)]
