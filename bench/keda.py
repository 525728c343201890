"""From requests to the replica that KEDA brings for them, beside our own wake, both from Zero on the local Kubernetes.

KEDA itself, Kubernetes' autoscaler behind it, and real workers as pods run on the cluster that `make cluster` made. Two
deployments are alike, but that a ScaledObject writes one's replicas. In turns each is asked at Zero by four clients, of
whom one replica is for two. Both are woken by their requests; KEDA then brings a second replica. When what was wanted
and what served is told by a watch, the first token by the clients. Kubernetes' autoscaler looks every 15 seconds: the
turns begin at even distances after it looked. Rows go into platform.json.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from threading import Event

from rich.console import Console

from bench.from_zero import RESOURCE
from bench.options import Options, main
from bench.results import RatioAtMost, Row
from bench.watching import watched
from dormouse_api.v1 import inference_pb2 as pb
from tests.e2e.kit import Deployments, Model, wait_until
from tests.install.conftest import Installed, a_release, gateway
from tests.platforms.demand import PER_REPLICA
from tests.platforms.keda import running_keda, scaled_object
from tools.kubectl import Cluster
from tools.train_model import Recipe, model_dir

OWN, KEDAS = "wren", "tern"
TURNS_PER_REP = 3
LOOK_S = 15.0  # how often Kubernetes' autoscaler does
WAIT_S = 180
PROMPT, LENGTH = [20, 21, 22, 23], 400
COUNTS = '{.spec.replicas},{.status.readyReplicas}{"\\n"}'


@dataclass(frozen=True, slots=True)
class Turn:
    """What one round of requests brought: seconds since they were sent."""

    token_s: float
    awake_s: float  # until a replica serves
    written_s: float | None = None  # until KEDA wrote that there are to be two
    scaled_s: float | None = None  # until the second one serves

    def __str__(self) -> str:
        """Show them in order."""
        later = "" if self.scaled_s is None else f", two wanted {self.written_s:.2f}, two serve {self.scaled_s:.2f}"
        return f"token {self.token_s:.2f}, awake {self.awake_s:.2f}{later} s"


@dataclass(slots=True)
class Seen:
    """When there were first so many replicas of a deployment: wanted ones, and ones that serve."""

    wanted_s: dict[int, float] = field(default_factory=dict)
    ready_s: dict[int, float] = field(default_factory=dict)

    def note(self, line: str) -> None:
        """Take a line of the watch."""
        for seen_s, count in zip((self.wanted_s, self.ready_s), line.split(","), strict=True):
            seen_s.setdefault(int(count or 0), time.monotonic())


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    cluster, count = Cluster.current(), TURNS_PER_REP * options.reps
    settings = {"gateway.scaler.enabled": "true"}
    with running_keda(cluster), a_release(cluster, model_dir(Recipe()), settings) as mine:
        deployments = _apply(mine)
        with gateway(mine) as stub:
            own, by_keda = Model(stub, OWN), Model(stub, KEDAS)
            turns = [
                (_own_turn(deployments, own, console), _kedas_turn(deployments, by_keda, number / count, console))
                for number in range(-1, count)
            ][1:]
    return list(_rows([own for own, _ in turns], [by_keda for _, by_keda in turns]))


def _rows(own: list[Turn], by_keda: list[Turn]) -> Iterator[Row]:
    wake_s = median(turn.awake_s for turn in own)
    written = [turn.written_s for turn in by_keda if turn.written_s is not None]
    scaled = [turn.scaled_s for turn in by_keda if turn.scaled_s is not None]
    peer = "beside our own wake"
    yield Row(f"KEDA: request → scaled (its replica serves), {peer}", median(scaled), "s", wake_s, RatioAtMost(2))
    yield Row(f"KEDA: request → replicas written, {peer}", median(written), "s", wake_s)
    tokens = [median(turn.token_s for turn in turns) for turns in (by_keda, own)]
    yield Row("KEDA: request → first token from Zero, with a ScaledObject and without", tokens[0], "s", tokens[1])


def _apply(installed: Installed) -> Deployments:
    """Apply both deployments, and have KEDA scale one; return them."""
    deployments = Deployments(installed.cluster, installed.namespace)
    spec = {key: value for key, value in RESOURCE["spec"].items() if key != "replicas"}  # the autoscaler's to write
    for name in (OWN, KEDAS):
        installed.cluster.apply({**RESOURCE, "metadata": {"name": name}, "spec": spec}, installed.namespace)
    installed.cluster.apply(scaled_object(installed, KEDAS), installed.namespace)
    installed.cluster.wait(f"scaledobject/{KEDAS}", "condition=Ready", installed.namespace)
    return deployments


def _own_turn(deployments: Deployments, model: Model, console: Console) -> Turn:
    """Ask at Zero, and stop as soon as it serves."""
    _wait_for_zero(deployments, model.name)
    with _watched(deployments, model.name) as seen, _asked(model) as asked:
        wait_until(lambda: 1 in seen.ready_s and asked.token_s, timeout_s=WAIT_S)
    turn = Turn(asked.token_s - asked.begun_s, seen.ready_s[1] - asked.begun_s)
    console.print(f"  own wake: {turn}", highlight=False)
    return turn


def _kedas_turn(deployments: Deployments, model: Model, part: float, console: Console) -> Turn:
    """Ask at Zero, this part of its distance after the autoscaler looked, and stop as soon as two replicas serve."""
    _wait_for_zero(deployments, model.name)
    time.sleep(LOOK_S * max(0.0, part))
    with _watched(deployments, model.name) as seen, _asked(model) as asked:
        wait_until(lambda: 2 in seen.ready_s and asked.token_s, timeout_s=WAIT_S)
    marks_s = asked.token_s, seen.ready_s.get(1, seen.ready_s[2]), seen.wanted_s[2], seen.ready_s[2]
    turn = Turn(*(each_s - asked.begun_s for each_s in marks_s))
    console.print(f"  KEDA: {turn}", highlight=False)
    return turn


def _wait_for_zero(deployments: Deployments, name: str) -> None:
    """Return once there is no pod and one replica is wanted, which the autoscaler says when it looks."""

    def is_there() -> bool:
        found = deployments.cluster.get("infd", name, deployments.namespace)
        is_zero = found.get("status", {}).get("phase") == "Zero" and found["spec"].get("replicas", 1) == 1
        return is_zero and not deployments.pods(name)

    wait_until(is_there, timeout_s=WAIT_S)


@contextmanager
def _watched(deployments: Deployments, name: str) -> Iterator[Seen]:
    """Give what a watch of the deployment sees, once it has seen what there is."""
    seen = Seen()
    what = ("infd", name, "-n", deployments.namespace)
    with watched(deployments.cluster, *what, shown=COUNTS, note=seen.note):
        wait_until(lambda: seen.wanted_s)
        yield seen


@dataclass(slots=True)
class Asked:
    """Requests under way."""

    begun_s: float
    token_s: float = 0.0  # when the first token of all came; 0 = none did


@contextmanager
def _asked(model: Model) -> Iterator[Asked]:
    """Have requests for two replicas under way."""
    is_over, asked = Event(), Asked(time.monotonic())
    with ThreadPoolExecutor(2 * PER_REPLICA) as clients:
        asking = [clients.submit(_ask_until, is_over, model, asked) for _ in range(2 * PER_REPLICA)]
        try:
            yield asked
        finally:
            is_over.set()
    for each in asking:
        each.result()


def _ask_until(is_over: Event, model: Model, asked: Asked) -> None:
    """Ask again and again until it is over; note the first token."""
    sampling = pb.SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    request = pb.GenerateRequest(model=model.name, token_ids=pb.TokenIds(ids=PROMPT), sampling_params=sampling)
    while not is_over.is_set():
        for _ in model.stub.Generate(request, timeout=WAIT_S):
            asked.token_s = asked.token_s or time.monotonic()


if __name__ == "__main__":
    main("keda", __doc__, measure)
