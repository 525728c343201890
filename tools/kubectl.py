"""Talk to the cluster of demo and tests through kubectl and helm, as a user would.

Knows two kinds of cluster: the local one of this tree (localkube), or the user's own, named by DORMOUSE_CONTEXT.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT

FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class CommandFailed(RuntimeError):
    """A command against the cluster failed; the text holds the command and what it said."""


def run(
    command: Sequence[str | Path],
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> str:
    """Run a command and return its standard output. Raises CommandFailed with the end of what it printed."""
    text = [str(part) for part in command]
    done = subprocess.run(
        text, input=stdin, capture_output=True, check=False, timeout=timeout_s, env={**os.environ, **(env or {})}
    )
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()[-20:]
        raise CommandFailed(f"{' '.join(text)} ended with {done.returncode}:\n" + "\n".join(said))
    return done.stdout.decode()


def localkube(*arguments: str) -> str:
    """Run a localkube command and return what it printed."""
    return run([sys.executable, "-m", "localkube", *arguments], env={"PYTHONPATH": str(ROOT)}, timeout_s=3600).strip()


@dataclass(frozen=True)
class Cluster:
    """A reachable cluster: which binaries, which kubeconfig, which context."""

    kubectl_path: str = "kubectl"
    helm_path: str = "helm"
    kubeconfig: str = ""  # "" = the user's own
    context: str = ""  # "" = the kubeconfig's current one
    local: bool = False  # True = localkube
    env: dict[str, str] = field(default_factory=dict)

    @classmethod
    def current(cls) -> Cluster:
        """Return the cluster of DORMOUSE_CONTEXT, or the local one (which must be up)."""
        if context := os.environ.get("DORMOUSE_CONTEXT"):
            return cls(context=context)
        binaries = Path(localkube("bin"))
        kubeconfig = localkube("kubeconfig")
        return cls(
            kubectl_path=str(binaries / "kubectl"),
            helm_path=str(binaries / "helm"),
            kubeconfig=kubeconfig,
            local=True,
            env={"KUBECONFIG": kubeconfig},
        )

    def kubectl_command(self, *arguments: str) -> list[str]:
        """Return the argument list of a kubectl call."""
        return [self.kubectl_path, *(["--context", self.context] if self.context else []), *arguments]

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 600) -> str:
        """Run kubectl and return its output."""
        data = stdin.encode() if stdin is not None else None
        return run(self.kubectl_command(*arguments), stdin=data, env=self.env, timeout_s=timeout_s)

    def helm(self, *arguments: str) -> str:
        """Run helm and return its output."""
        context = ["--kube-context", self.context] if self.context else []
        return run([self.helm_path, *context, *arguments], env=self.env)

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        """Return one object. Raises CommandFailed if it does not exist."""
        result: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-n", namespace, "-o", "json"))
        return result

    def list(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind in a namespace, narrowed by a label selector."""
        narrowed = ["-l", selector] if selector else []
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-n", namespace, *narrowed, "-o", "json"))[
            "items"
        ]
        return items

    def apply(self, manifest: Mapping[str, Any] | str, namespace: str) -> str:
        """Apply a manifest (a mapping, or YAML text)."""
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        return self.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)

    def create_namespace(self, name: str, *, restricted: bool = True) -> None:
        """Create a namespace if it is missing, by default one that enforces the restricted Pod Security standard."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"} if restricted else {}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def wait(self, what: str, condition: str, namespace: str, timeout_s: int = 180) -> str:
        """Wait with `kubectl wait --for=CONDITION`."""
        return self.kubectl("wait", what, f"--for={condition}", "-n", namespace, f"--timeout={timeout_s}s")

    @contextmanager
    def port_forward(self, target: str, port: int, namespace: str) -> Iterator[int]:
        """Forward a free port of loopback to a service or pod while the block runs; yields the local port."""
        command = self.kubectl_command("port-forward", "-n", namespace, target, f":{port}", "--address", "127.0.0.1")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **self.env}
        )
        try:
            yield _forwarded_port(process)
        finally:
            process.terminate()
            process.wait()
            if process.stdout:
                process.stdout.close()


def _forwarded_port(process: subprocess.Popen[str]) -> int:
    """Read the local port from what kubectl prints once the forward stands."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if found := FORWARDING.search(line):
            return int(found[1])
        said.append(line)
    raise CommandFailed("kubectl port-forward ended: " + "".join(said))


def fill_claim(cluster: Cluster, *, namespace: str, claim: str, image: str, folders: Mapping[str, Path]) -> None:
    """Copy folders (name on the volume → local path) into a claim, through a pod that mounts it."""
    pod = f"fill-{claim}"
    cluster.apply(_filling_pod(pod, claim, image), namespace)
    cluster.wait(f"pod/{pod}", "condition=Ready", namespace, timeout_s=600)
    untar = cluster.kubectl_command("exec", "-i", "-n", namespace, pod, "--", "tar", "-xf", "-", "-C", "/claim")
    for name, path in folders.items():
        run(untar, stdin=_archive(path, name), env=cluster.env)
    cluster.kubectl("delete", "pod", pod, "-n", namespace, "--grace-period=1")


def _archive(path: Path, name: str) -> bytes:
    """Return a folder as a tar archive in which it is called `name`, readable by everyone."""

    def readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mode = 0o755 if entry.isdir() else 0o644
        entry.uid = entry.gid = 0
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(path, arcname=name, filter=readable)
    return buffer.getvalue()


def _filling_pod(name: str, claim: str, image: str) -> dict[str, Any]:
    """Return a pod under the restricted standard that mounts the claim at /claim and waits."""
    container = {
        "name": "fill",
        "image": image,
        "command": ["sleep", "3600"],
        "volumeMounts": [{"name": "claim", "mountPath": "/claim"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
