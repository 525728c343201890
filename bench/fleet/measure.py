"""The parts of the benchmark, each a coroutine over one running fleet. Times come from the tracker's one clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.fleet.audit import AuditLog
from bench.fleet.cluster import NAMESPACE, RELEASE, Cluster
from bench.fleet.deployments import Deployments, names, spread
from bench.fleet.figures import Burst, Handover, Rest
from bench.fleet.operators import Operator
from bench.fleet.tracker import Expectation, FleetError, Tracker, deployment_ready, pod_ready
from dormouse_kube.api import LEASES, KubeApi

SETTLE_S = 40.0  # after the last change, before rest is measured: more than one resync
REST_S = 120.0  # four resyncs
CHANGED = 50  # deployments whose spec changes while there is no operator
HANDOVERS = 3
PROGRESS_S = 10.0
STEP_TIMEOUT_S = 60.0
IDLE_S, IDLE_SHARE, IDLE_TIMEOUT_S = 2.0, 0.05, 120.0
POLL_S = 0.02


@dataclass(slots=True)
class Fleet:
    """Everything that runs, and what every part needs."""

    cluster: Cluster
    kube: KubeApi
    tracker: Tracker
    deployments: Deployments
    audit: AuditLog
    say: Callable[[str], None]
    operators: dict[int, Operator] = field(default_factory=dict)
    population: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Fleet({len(self.population)} deployments, {list(self.operators.values())})"

    @property
    def operator(self) -> Operator:
        """Return the only operator."""
        (operator,) = self.operators.values()
        return operator

    def start_operator(self, number: int = 0) -> Operator:
        """Start an operator, or start it anew."""
        self.operators[number] = Operator(self.cluster, number)
        return self.operators[number]

    async def leader(self) -> str:
        """Return the name of the operator that holds the lease, "" for none."""
        lease = await self.kube.get(LEASES, NAMESPACE, f"{RELEASE}-operator")
        return (lease["spec"].get("holderIdentity") or "").partition("/")[0] if lease else ""

    async def until_leader(self, wanted: Sequence[str], timeout_s: float = STEP_TIMEOUT_S) -> str:
        """Wait until one of the named operators holds the lease; return which. Raises FleetError."""
        deadline_s = time.monotonic() + timeout_s
        while (holder := await self.leader()) not in wanted:
            if time.monotonic() > deadline_s:
                raise FleetError(f"waited {timeout_s:.0f} s for the lease: it is held by {holder or 'nobody'}")
            await asyncio.sleep(POLL_S)
        return holder


async def burst(fleet: Fleet, count: int) -> Burst:
    """Apply so many deployments at once and wait until all are Ready."""
    wanted = names(0, count)
    operator, tracker = fleet.operator, fleet.tracker
    ready, pods = tracker.expect(wanted, deployment_ready), tracker.expect(wanted, pod_ready)
    fleet.audit.read()
    cpu_s, num_reads, begin_s = operator.cpu_s, operator.num_reads(), time.monotonic()
    applied = await fleet.deployments.create(wanted)
    fleet.population += wanted
    ready_at = await _with_progress(fleet, ready, f"{count:,} deployments to be Ready")
    return Burst(
        applied_s=[at - begin_s for at in applied],
        pods_ready_s=[at - begin_s for at in pods.times_s.values()],
        ready_s=[at - begin_s for at in ready_at.values()],
        cpu_s=operator.cpu_s - cpu_s,
        num_reads=operator.num_reads() - num_reads,
        writes=fleet.audit.read(),
    )


async def populate(fleet: Fleet, count: int) -> None:
    """Add deployments until there are so many, all Ready."""
    wanted = names(len(fleet.population), count)
    if not wanted:
        return
    ready = fleet.tracker.expect(wanted, deployment_ready)
    await fleet.deployments.create(wanted)
    fleet.population += wanted
    await _with_progress(fleet, ready, f"{len(wanted):,} more deployments to be Ready")


async def _with_progress(fleet: Fleet, ready: Expectation, what: str) -> dict[str, float]:
    """Wait for many deployments, with a line now and then and as long as the operator lives."""
    timeout_s = 120 + 0.5 * len(fleet.population)
    waiting = asyncio.ensure_future(ready.wait(what, timeout_s))
    while not (await asyncio.wait([waiting], timeout=PROGRESS_S))[0]:
        fleet.operator.check()
        fleet.say(f"{ready} Ready, {fleet.operator.cpu_s:.1f} s of operator CPU so far")
    return await waiting


async def rest(fleet: Fleet) -> Rest:
    """Leave the deployments alone and look at what the operator does all the same."""
    fleet.say(f"letting {len(fleet.population):,} deployments come to rest for {SETTLE_S:.0f} s")
    await asyncio.sleep(SETTLE_S)
    operator = fleet.operator
    fleet.audit.read()
    cpu_s, num_reads, begin_s = operator.cpu_s, operator.num_reads(), time.monotonic()
    await asyncio.sleep(REST_S)
    return Rest(
        count=len(fleet.population),
        seconds=time.monotonic() - begin_s,
        resident_bytes=operator.resident_bytes,
        writes=fleet.audit.read(),
        num_reads=operator.num_reads() - num_reads,
        cpu_s=operator.cpu_s - cpu_s,
    )


async def changes(fleet: Fleet, samples: int) -> list[float]:
    """Change one deployment after the other; return how long each time until its new pod was there."""
    return [await _change(fleet, name) for name in spread(fleet.population, samples)]


async def _change(fleet: Fleet, name: str) -> float:
    begin_s = time.monotonic()
    updated = fleet.tracker.expect_new_pods([name])
    await fleet.deployments.change(name)
    at_s = (await updated.wait(f"a pod of the new spec of {name}", STEP_TIMEOUT_S))[name]
    await fleet.tracker.until_settled([name], STEP_TIMEOUT_S)
    return at_s - begin_s


async def additions(fleet: Fleet, samples: int) -> tuple[list[float], list[float]]:
    """Add one deployment after the other; return the times from pod Ready, and from applied, to deployment Ready."""
    reports_s, starts_s = [], []
    for name in names(len(fleet.population), len(fleet.population) + samples):
        pod, ready = fleet.tracker.expect([name], pod_ready), fleet.tracker.expect([name], deployment_ready)
        begin_s = time.monotonic()
        await fleet.deployments.create([name])
        at_s = (await ready.wait(f"{name} to be Ready", STEP_TIMEOUT_S))[name]
        pod_at_s = (await pod.wait(f"the pod of {name} to be Ready", STEP_TIMEOUT_S))[name]
        reports_s.append(max(0.0, at_s - pod_at_s))  # the two watches may tell in either order
        starts_s.append(at_s - begin_s)
        fleet.population.append(name)
    return reports_s, starts_s


async def start(fleet: Fleet) -> float:
    """Start the operator over all deployments, some of which changed; return when it had acted on all of those."""
    await fleet.operator.end()
    changed = spread(fleet.population, CHANGED)
    for name in changed:
        await fleet.deployments.change(name)
    updated = fleet.tracker.expect_new_pods(changed)
    begin_s = time.monotonic()
    fleet.start_operator()
    times_s = await updated.wait("pods of specs that changed before the operator started", 10 * STEP_TIMEOUT_S)
    await fleet.tracker.until_settled(changed, 10 * STEP_TIMEOUT_S)
    return max(times_s.values()) - begin_s


async def handovers(fleet: Fleet, *, is_graceful: bool) -> list[Handover]:
    """End the leader a few times, each time beside an operator that waits; return how long the other took."""
    found = []
    for turn in range(HANDOVERS):
        await _complete(fleet)
        found.append(await _hand_over(fleet, fleet.population[turn], is_graceful=is_graceful))
        fleet.say(f"{'ended' if is_graceful else 'killed'}: {found[-1]}")
    return found


async def _complete(fleet: Fleet) -> None:
    """Make sure that two operators run and have nothing to do."""
    for number in (0, 1):
        known = fleet.operators.get(number)
        if known is None or known.process.poll() is not None:
            fleet.start_operator(number)
    await fleet.until_leader([operator.name for operator in fleet.operators.values()])
    for operator in fleet.operators.values():
        await _until_idle(operator)


async def _until_idle(operator: Operator) -> None:
    """Wait until the operator takes next to no processor time, or for as long as that may take."""
    deadline_s = time.monotonic() + IDLE_TIMEOUT_S
    while time.monotonic() < deadline_s:
        operator.check()
        before_s = operator.cpu_s
        await asyncio.sleep(IDLE_S)
        if operator.cpu_s - before_s < IDLE_SHARE * IDLE_S:
            return


async def _hand_over(fleet: Fleet, name: str, *, is_graceful: bool) -> Handover:
    """End the leader; once the other holds the lease, have it act on a change."""
    holder = await fleet.leader()
    leader = next(operator for operator in fleet.operators.values() if operator.name == holder)
    others = [operator.name for operator in fleet.operators.values() if operator is not leader]
    begin_s = time.monotonic()
    leader.process.terminate() if is_graceful else leader.process.kill()
    await fleet.until_leader(others)
    taken_s = time.monotonic() - begin_s
    updated = fleet.tracker.expect_new_pods([name])
    await fleet.deployments.change(name)
    at_s = (await updated.wait(f"the other operator to act on {name}", 10 * STEP_TIMEOUT_S))[name]
    await leader.end()
    await fleet.tracker.until_settled([name], 10 * STEP_TIMEOUT_S)
    return Handover(taken_s, at_s - begin_s)
