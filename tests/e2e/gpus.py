"""GPUs that are not there, on the local cluster's first node: offered by claims, and as a folder that pods share."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localkube.spec import Paths
from tools.bootstrap import cache_root
from tools.release import tool_command, tool_env

FOLDER = Paths(Path(cache_root()).resolve() / "localkube").stand_ins


class Driver:
    """Stand-in GPUs of 512 MiB, offered by a process that may be killed and started again."""

    def __init__(self, number: int, *flags: str) -> None:
        self.number = number
        self.flags = flags
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = tool_command("localkube", "gpus", "--number", str(self.number), "--memory", "512Mi", *self.flags)
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=tool_env())
        assert process.stderr is not None
        said = process.stderr.readline()
        names = ", ".join(f"gpu-{index}" for index in range(self.number))
        if f"offers {names} of" not in said:
            process.kill()
            pytest.fail(said + process.communicate()[1])
        return process

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Let there be no driver while the block runs; the one before had no time to clean up."""
        self.process.kill()
        self.process.communicate()
        try:
            yield
        finally:
            self.process = self._start()

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said


def volume(name: str, namespace: str) -> list[dict[str, Any]]:
    """Return a volume with the folder, and the claim in the namespace that pods have it by."""
    form = {"storageClassName": "", "accessModes": ["ReadWriteMany"]}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **form,
                "capacity": {"storage": "1Mi"},
                "hostPath": {"path": str(FOLDER)},
                "claimRef": {"namespace": namespace, "name": name},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {**form, "volumeName": name, "resources": {"requests": {"storage": "1Mi"}}},
        },
    ]


def mounted(name: str) -> dict[str, Any]:
    """Return a template with which a worker takes the stand-ins of a claim for the machine's GPUs."""
    worker = {
        "name": "worker",
        "env": [{"name": "STAND_IN_DEVICES", "value": "/stand-ins"}],
        "volumeMounts": [{"name": "stand-ins", "mountPath": "/stand-ins"}],
    }
    volumes = [{"name": "stand-ins", "persistentVolumeClaim": {"claimName": name}}]
    return {"spec": {"volumes": volumes, "containers": [worker]}}
