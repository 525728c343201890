"""The gateway as a process beside the sandbox's cluster: start it, read its memory and what it holds."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.fleet.cluster import Cluster
from bench.fleet.operators import parse_resident
from bench.fleet.tracker import FleetError
from localkube.host import search_path
from tools.bootstrap import ROOT, bare_python

HOST, PORT, CONTROL_PORT, METRICS_PORT = "127.0.0.1", 15051, 15052, 15080
START_TIMEOUT_S = 30.0
POLL_S = 0.02
_HELD = re.compile(r"^dormouse_held_requests\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)
_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB$", re.MULTILINE)


def environment(cluster: Cluster) -> dict[str, str]:
    """Return the gateway's environment; every other setting is its default."""
    return {
        "PATH": search_path(),
        "HOME": str(Path.home()),
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("api", "kube", "gateway")),
        "KUBECONFIG": str(cluster.gateway_kubeconfig),
        "DORMOUSE_HOST": HOST,
        "DORMOUSE_POD_IPS": HOST,
        "DORMOUSE_TOKENS_DIR": str(cluster.tokens),
        "DORMOUSE_PORT": str(PORT),
        "DORMOUSE_CONTROL_PORT": str(CONTROL_PORT),
        "DORMOUSE_METRICS_PORT": str(METRICS_PORT),
        "DORMOUSE_HTTP_PORT": "0",
    }


def operator_environment() -> Mapping[str, str]:
    """Return by what the operator finds the gateway."""
    return {"DORMOUSE_GATEWAY_CONTROL": f"{HOST}:{CONTROL_PORT}"}


class GatewayProcess:
    """One gateway process, started."""

    def __init__(self, cluster: Cluster) -> None:
        self.log = cluster.paths.logs / "gateway.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [bare_python(), "-m", "dormouse_gateway"],
                env=environment(cluster),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def __repr__(self) -> str:
        return f"GatewayProcess(pid={self.process.pid})"

    async def until_ready(self) -> None:
        """Wait until it serves. Raises FleetError."""
        for _ in range(int(START_TIMEOUT_S / POLL_S)):
            if self.process.poll() is not None:
                raise FleetError(f"the gateway ended with {self.process.returncode}; log: {self.log}")
            if (await _get("/readyz")).startswith("HTTP/1.1 200"):
                return
            await asyncio.sleep(POLL_S)
        raise FleetError(f"waited {START_TIMEOUT_S:.0f} s for the gateway to serve; log: {self.log}")

    async def num_held(self) -> int:
        """Return how many requests of all models it holds."""
        return parse_held(await _get("/metrics"))

    @property
    def resident_bytes(self) -> int:
        """Return the resident memory."""
        return parse_resident(self._status())

    @property
    def peak_bytes(self) -> int:
        """Return the highest resident memory since `begin_peak`."""
        return parse_peak(self._status())

    def begin_peak(self) -> None:
        """Have the highest resident memory begin anew."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status(self) -> str:
        return Path(f"/proc/{self.process.pid}/status").read_text("utf-8")


def parse_held(metrics: str) -> int:
    """Return the sum over all models of what the gateway's metrics say is held."""
    return round(sum(float(value) for value in _HELD.findall(metrics)))


def parse_peak(status: str) -> int:
    """Return the highest resident memory from the text of /proc/PID/status. Raises ValueError."""
    found = _PEAK.search(status)
    if found is None:
        raise ValueError("VmHWM is not in /proc/PID/status: the process has ended")
    return 1024 * int(found[1])


async def _get(path: str) -> str:
    """Return a whole answer of the gateway's own HTTP port, "" if there is none."""
    try:
        reader, writer = await asyncio.open_connection(HOST, METRICS_PORT)
    except OSError:
        return ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
    try:
        return (await reader.read()).decode()
    except OSError:
        return ""
    finally:
        writer.close()
