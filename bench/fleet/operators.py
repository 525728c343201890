"""Operator processes from the tree: start them, end them in two ways, and read what they take and what they ask."""

from __future__ import annotations

import asyncio
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.fleet.cluster import NAMESPACE, RELEASE, Cluster
from bench.fleet.tracker import FleetError
from bench.front_cost import cpu_s
from localkube.host import search_path
from tools.bootstrap import ROOT, bare_python

FIRST_PORT = 18080
CALLS = "dormouse_kube_requests"
READS = ("get", "list")
POLL_S = 0.02
END_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 5.0


def environment(cluster: Cluster, name: str, port: int) -> dict[str, str]:
    """Return the environment of the operator called `name`; every other setting is its default."""
    return {
        "PATH": search_path(),
        "HOME": str(Path.home()),
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("api", "kube", "operator")),
        "KUBECONFIG": str(cluster.operator_kubeconfig),
        "DORMOUSE_NAMESPACE": NAMESPACE,
        "DORMOUSE_RELEASE": RELEASE,
        "DORMOUSE_POD_NAME": name,
        "DORMOUSE_POD_UID": name,
        "DORMOUSE_TOKENS_DIR": str(cluster.tokens),
        "DORMOUSE_METRICS_PORT": str(port),
    }


class Operator:
    """One operator process, started."""

    def __init__(self, cluster: Cluster, number: int, more_env: Mapping[str, str] | None = None) -> None:
        self.name = f"operator-{number}"
        self.port = FIRST_PORT + number
        self.log = cluster.paths.logs / f"{self.name}.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [bare_python(), "-m", "dormouse_operator"],
                env={**environment(cluster, self.name, self.port), **(more_env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def __repr__(self) -> str:
        return f"Operator({self.name}, pid={self.process.pid})"

    @property
    def cpu_s(self) -> float:
        """Return the processor time so far."""
        return cpu_s(self.process.pid)

    @property
    def resident_bytes(self) -> int:
        """Return the resident memory."""
        return parse_resident(Path(f"/proc/{self.process.pid}/status").read_text("utf-8"))

    def num_reads(self) -> float:
        """Return how many objects and lists it asked the API server for so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=ANSWER_TIMEOUT_S) as answer:
            return sum_reads(answer.read().decode())

    async def end(self) -> None:
        """End it as a cluster does. Raises FleetError if it does not end."""
        self.process.terminate()
        for _ in range(int(END_TIMEOUT_S / POLL_S)):
            if self.process.poll() is not None:
                return
            await asyncio.sleep(POLL_S)
        raise FleetError(f"{self.name} did not end within {END_TIMEOUT_S:.0f} s of SIGTERM; log: {self.log}")

    def check(self) -> None:
        """Raise FleetError if it has ended by itself."""
        if self.process.poll() is not None:
            raise FleetError(f"{self.name} ended with {self.process.returncode}; log: {self.log}")


def parse_resident(status: str) -> int:
    """Return the resident bytes from the text of /proc/PID/status. Raises ValueError if they are not in it."""
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise ValueError("VmRSS is not in /proc/PID/status: the process has ended")


def sum_reads(metrics: str) -> float:
    """Return the calls that read, from the operator's metrics. Raises ValueError if it does not count calls."""
    families = {family.name: family for family in text_string_to_metric_families(metrics)}
    if CALLS not in families:
        raise ValueError(f"the operator's metrics have no {CALLS}")
    calls = (sample for sample in families[CALLS].samples if sample.name.endswith("_total"))
    return sum(sample.value for sample in calls if sample.labels["verb"] in READS)
