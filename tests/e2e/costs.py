"""What `dormouse cost` says by a real Prometheus that scrapes the release's operators."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from localkube.packages import PROMETHEUS, ensure_package
from localkube.progress import Progress
from localkube.spec import Paths
from tests.e2e.kit import dormouse
from tests.faults.prometheus import Prometheus, Target
from tools.bootstrap import cache_root
from tools.kubectl import Cluster
from tools.release import Release

_HOUR = 6000  # the price of one GPU: 100 a minute, which is how finely the command asks


@contextmanager
def counted(cluster: Cluster, release: Release, folder: Path) -> Iterator[Prometheus]:
    """Have a Prometheus of the host's scrape the operators while the context lasts."""
    programs = ensure_package(Paths(Path(cache_root()).resolve() / "localkube"), PROMETHEUS, Progress())
    with ExitStack() as stack:
        targets = []
        for pod in cluster.list("pods", release.namespace, "app.kubernetes.io/component=operator"):
            name = pod["metadata"]["name"]
            port = stack.enter_context(cluster.port_forward(f"pod/{name}", 8080, release.namespace))
            targets.append(Target(f"127.0.0.1:{port}", release.namespace, name))
        prometheus = Prometheus(folder / "prometheus", programs / "prometheus")
        stack.callback(prometheus.program.end)
        prometheus.scrape(targets)
        yield prometheus


def minutes_by_model(cluster: Cluster, namespace: str, prometheus: Prometheus) -> dict[str, dict[str, int]]:
    """Return how many minutes each deployment's GPU was awake, asleep and away, as its bill says. Checks the sums.

    All are members of a pool, where a sleeper costs nothing.
    """
    given = ["--prometheus", prometheus.url, "--since", "1h", "--gpu-hour", str(_HOUR)]
    found = {}
    for bill in csv.DictReader(dormouse(cluster, "cost", "-n", namespace, *given).splitlines()):
        minutes = {state: round(60 * float(bill[f"{state}_gpu_h"])) for state in ("awake", "asleep", "zero")}
        assert float(bill["cost"]) == pytest.approx(minutes["awake"] * _HOUR / 60)
        assert float(bill["saved"]) == pytest.approx((minutes["asleep"] + minutes["zero"]) * _HOUR / 60)
        found[bill["deployment"]] = minutes
    return found
