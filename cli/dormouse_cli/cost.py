"""`cost`: what deployments cost by the hours of their GPUs, and what sleeping saved; as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from dormouse_cli import find
from dormouse_cli.prometheus import Sample, query
from dormouse_cli.session import Session
from dormouse_cli.view import Raw

_STEP_S = 60  # how finely Prometheus is asked
_HOUR_S = 3600.0
_NO_GPU = frozenset({"asleep", "pending"})  # pending holds none yet; asleep has a price of its own
HEAD = ("namespace", "deployment", "gpus", "awake_gpu_h", "asleep_gpu_h", "zero_gpu_h", "cost", "always_awake", "saved")


@dataclass(frozen=True, slots=True)
class Prices:
    """Of an hour of one GPU."""

    awake: float
    asleep: float | None  # None: nothing for members of pools, whose GPU others use then; as awake for all others


@dataclass(frozen=True, slots=True)
class Bill:
    """What one deployment used, in hours of a GPU."""

    namespace: str
    name: str
    num_gpus: int  # of a replica
    awake_h: float
    asleep_h: float
    zero_h: float  # that no pod of it was there
    cost: float
    always_awake: float  # what it would have cost

    @property
    def cells(self) -> tuple[str, ...]:
        """Return what stands in the columns."""
        figures = (self.awake_h, self.asleep_h, self.zero_h, self.cost, self.always_awake)
        saved = self.always_awake - self.cost
        return (self.namespace, self.name, str(self.num_gpus), *(f"{each:.2f}" for each in (*figures, saved)))


async def show(session: Session, prices: Prices, *, namespace: str | None, prometheus: str, since: str) -> None:
    """Write the table. Raises CommandFailed, KubeError."""
    deployments = await find.deployments(session.cluster, namespace)
    seconds = query(prometheus, f"{_STEP_S} * sum_over_time(dormouse_replicas[{since}:{_STEP_S}s])")
    there = query(prometheus, f"{_STEP_S} * count_over_time(dormouse_deployment_ready[{since}:{_STEP_S}s])")
    session.screen.out.file.write(table(bills(deployments, seconds, there, prices)))


def bills(deployments: Iterable[Raw], seconds: Iterable[Sample], there: Iterable[Sample], prices: Prices) -> list[Bill]:
    """Return a bill for each deployment. Pure.

    `seconds` are those of its replicas in each state, `there` those that it has been there: what of that no replica
    was in any state, none of its pods was there.
    """
    spent: dict[tuple[str, str], dict[str, float]] = {}
    for labels, value in seconds:
        states = spent.setdefault((labels["namespace"], labels["deployment"]), {})
        states[labels["state"]] = states.get(labels["state"], 0.0) + value
    lived = {(labels["namespace"], labels["deployment"]): value for labels, value in there}
    found = []
    for raw in deployments:
        key = raw["metadata"]["namespace"], raw["metadata"]["name"]
        found.append(_bill(raw, spent.get(key, {}), lived.get(key, 0.0), prices))
    return found


def _bill(raw: Raw, states: dict[str, float], lived_s: float, prices: Prices) -> Bill:
    spec = raw.get("spec") or {}
    num_gpus, replicas = gpus_of(spec), int(spec.get("replicas", 1))
    asleep_h = states.get("asleep", 0.0) * num_gpus / _HOUR_S
    awake_h = sum(value for state, value in states.items() if state not in _NO_GPU) * num_gpus / _HOUR_S
    zero_h = max(0.0, lived_s * replicas * num_gpus / _HOUR_S - awake_h - asleep_h)
    is_shared = bool((spec.get("gpu") or {}).get("pool"))
    price = prices.asleep if prices.asleep is not None else 0.0 if is_shared else prices.awake
    cost = awake_h * prices.awake + asleep_h * price
    always = (awake_h + asleep_h + zero_h) * prices.awake
    metadata = raw["metadata"]
    return Bill(metadata["namespace"], metadata["name"], num_gpus, awake_h, asleep_h, zero_h, cost, always)


def gpus_of(spec: Raw) -> int:
    """Return how many GPUs a replica holds: one for each rank, none on processors. Pure."""
    if (spec.get("engine") or {}).get("device") == "cpu":
        return 0
    parallelism = spec.get("parallelism") or {}
    return int(parallelism.get("tensor") or 1) * int(parallelism.get("pipeline") or 1)


def table(found: Iterable[Bill]) -> str:
    """Return CSV. Pure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    writer.writerows(bill.cells for bill in found)
    return text.getvalue()
