"""From a request to the replica that it brought: by KEDA, by the operator's own scaling, and by our wake from Zero.

KEDA itself, Kubernetes' autoscaler behind it, and real workers as pods run on the local Kubernetes (`make cluster`).
Four clients ask a model of which one replica is for two; a second one comes, `readyReplicas` says when. A wake from
Zero is what `bench.from_zero` measures, here in the same minutes: from one request to its first token. Rows go into
platform.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from threading import Event
from typing import Any

from rich.console import Console

from bench.from_zero import RESOURCE
from bench.options import Options, main
from bench.results import RatioAtMost, Row
from tests.e2e.kit import Deployments, Model, wait_until
from tests.install.conftest import a_release, gateway
from tests.platforms.demand import PER_REPLICA, ask_until
from tests.platforms.keda import running_keda, scaled_object
from tools.kubectl import Cluster
from tools.train_model import Recipe, model_dir

KEDAS, OURS, SLEEPER = "tern", "wren", "moth"
PROMPT = [20, 21, 22, 23]


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    cluster, times = Cluster.current(), options.reps
    with running_keda(cluster), a_release(cluster, model_dir(Recipe()), {"gateway.scaler.enabled": "true"}) as mine:
        deployments = Deployments(cluster, mine.namespace)
        with gateway(mine) as stub:
            woken = list(_wakes(deployments, Model(stub, SLEEPER), times))
            by_keda = _scaled(deployments, Model(stub, KEDAS), times, lambda: _let_keda(mine, cluster))
            ours = _scaled(deployments, Model(stub, OURS), times, lambda: None, **_OWN_SCALING)
    for what, found in (("wake", woken), ("KEDA", by_keda), ("own scaling", ours)):
        console.print(f"  {what}: {', '.join(f'{each:.1f}' for each in found)} s", highlight=False)
    wake_s = median(woken)
    about = "from requests for two replicas to the second that serves; peer: our wake from Zero, to the first token"
    return [
        Row(f"KEDA: {about}", median(by_keda), "s", peer=wake_s, goal=RatioAtMost(2)),
        Row(f"spec.scaling: {about}", median(ours), "s", peer=wake_s),
    ]


_OWN_SCALING: dict[str, Any] = {
    "scaling": {"minReplicas": 1, "maxReplicas": 2, "targetOutstandingPerReplica": PER_REPLICA}
}


def _let_keda(installed: Any, cluster: Cluster) -> None:
    cluster.apply(scaled_object(installed, KEDAS), installed.namespace)
    cluster.wait(f"scaledobject/{KEDAS}", "condition=Ready", installed.namespace)


def _wakes(deployments: Deployments, model: Model, times: int) -> Iterator[float]:
    """Yield what requests took that found no pod."""
    deployments.cluster.apply({**RESOURCE, "metadata": {"name": SLEEPER}}, deployments.namespace)
    for _ in range(times):
        wait_until(lambda: deployments.condition(SLEEPER, "Asleep").get("reason") == "Zero")
        wait_until(lambda: not deployments.pods(SLEEPER))
        begun_s = time.monotonic()
        model.greedy(PROMPT, 1)
        yield time.monotonic() - begun_s
    deployments.cluster.kubectl("delete", "infd", SLEEPER, "-n", deployments.namespace)


def _scaled(
    deployments: Deployments, model: Model, times: int, scale: Callable[[], object], **spec: Any
) -> list[float]:
    """Return the times from requests for two replicas to the second one that serves."""
    name, namespace = model.name, deployments.namespace
    engine = {"maxModelLen": 512, "kvCacheMemory": "64Mi"}
    manifest = deployments.manifest(name, engine=engine, lifecycle={"desiredState": "Active"}, **spec)
    found: list[float] = []
    deployments.cluster.apply(manifest, namespace)
    deployments.wait(name, "condition=Ready", timeout_s=180)
    scale()
    for _ in range(times):
        with _asked(model):
            begun_s = time.monotonic()
            deployments.wait(name, "jsonpath={.status.readyReplicas}=2", timeout_s=180)
            found.append(time.monotonic() - begun_s)
        deployments.cluster.kubectl("scale", "infd", name, "-n", namespace, "--replicas=1")  # the window is 5 minutes
        wait_until(lambda: len(deployments.pods(name)) == 1)
    deployments.cluster.kubectl("delete", "infd", name, "-n", namespace)
    return found


@contextmanager
def _asked(model: Model) -> Iterator[None]:
    """Have requests for two replicas under way."""
    is_over = Event()
    with ThreadPoolExecutor(2 * PER_REPLICA) as clients:
        for _ in range(2 * PER_REPLICA):
            clients.submit(ask_until, is_over, model)
        try:
            yield
        finally:
            is_over.set()


if __name__ == "__main__":
    main("keda", __doc__, measure)
