"""The API server, or what stands before it, answers wrongly. F4 to F8 of the fault matrix, through an HTTP proxy."""

from __future__ import annotations

import asyncio
import itertools
import json
from functools import partial

import pytest

from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, SERVICES
from tests.faults.gate import Answer, Call, Gate, Hangup, WatchStream, refusal
from tests.faults.world import World

NEVER = 3600  # a resync that does not come: the watch alone has to notice


class Storm:
    """Refuses every call with the same answer and notes when each call came."""

    def __init__(self, gate: Gate, status: int, reason: str, retry_after_s: int | None = None) -> None:
        """Begin."""
        self._answer = (status, reason, retry_after_s)
        self.came: dict[tuple[str, str], list[float]] = {}
        gate.before = self._refuse

    async def _refuse(self, call: Call) -> Answer:
        now = asyncio.get_running_loop().time()
        self.came.setdefault((call.method, f"{call.path} watch={call.is_watch}"), []).append(now)
        return refusal(*self._answer)

    @property
    def count(self) -> int:
        """Return how many calls it refused."""
        return sum(len(times) for times in self.came.values())


async def test_a_storm_of_refusals_ends_no_process(world: World) -> None:
    """F4: what was asked for during the storm is done after it."""
    async with world.gate() as (gate, url), world.operator(url=url, resync_seconds=1) as operator:
        await world.apply("a")
        await world.serves("a")
        storm = Storm(gate, 503, "ServiceUnavailable")
        await world.apply("a", replicas=2)
        await world.apply("b")
        await world.until(lambda: storm.count >= 6)
        storm = Storm(gate, 429, "TooManyRequests", retry_after_s=1)
        await world.until(lambda: storm.count >= 6)
        assert world.pods("b") == []
        gate.reset()
        await world.serves("a", replicas=2)
        await world.serves("b")
        assert operator.exit_codes == []


@pytest.mark.slow  # it measures pauses
async def test_retry_after_is_honoured(world: World) -> None:
    """F4: nobody calls the same thing again before the time that the server asked for; the lease has its own pace."""
    async with world.gate() as (gate, url), world.operator(url=url, resync_seconds=1):
        await world.apply("a")
        await world.serves("a")
        storm = Storm(gate, 429, "TooManyRequests", retry_after_s=3)
        await world.apply("a", replicas=2)
        await world.until(lambda: storm.count >= 12)
        gate.reset()
        early = {
            call: [later - earlier for earlier, later in itertools.pairwise(times) if later - earlier < 2.9]
            for call, times in storm.came.items()
            if "/leases" not in call[1]
        }
        assert not any(early.values()), early


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_long_storm_is_survived(world: World) -> None:
    """F4, beyond the lease: kopf as it comes would have ended for good."""
    async with world.gate() as (gate, url), world.operator(url=url) as operator:
        await world.apply("a")
        await world.serves("a")
        storm = Storm(gate, 503, "ServiceUnavailable")
        await world.apply("b")
        await world.until(lambda: storm.count >= 60 and operator.exit_codes, timeout_s=200)
        gate.reset()
        await world.serves("b")
        await world.serves("a")
        assert set(operator.exit_codes) <= {1}, "the leader stops when it cannot renew, and nothing else ends it"


async def test_children_that_vanish_while_the_watch_is_deaf_are_made_again(world: World) -> None:
    """F5: 410 Gone after a compaction, and a pod deleted in the gap, of which no event will ever tell."""
    async with world.gate() as (gate, url), world.operator(url=url, resync_seconds=NEVER) as operator:
        await world.apply("a")
        await world.serves("a")
        [pod] = world.pods("a")
        for stream in gate.watches:
            stream.is_stalled = True
        world.kubelet.starts.clear()
        await world.kube.delete(PODS, world.namespace, pod["metadata"]["name"])
        await world.until(lambda: not world.pods("a"))
        world.plane.compact()
        gone = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}
        await break_watches(gate, json.dumps({"type": "ERROR", "object": gone}).encode())
        await world.until(lambda: world.pods("a"))
        await world.serves("a")
        assert operator.exit_codes == []


@pytest.mark.slow
async def test_a_watch_that_says_nothing_any_more_is_noticed_by_its_silence(world: World) -> None:
    """F6: the connection stands and is silent, without a bookmark: after 70 s it counts as dead and begins anew."""
    async with world.gate() as (gate, url), world.operator(url=url, resync_seconds=1):
        await world.apply("a")
        await world.serves("a")
        for stream in gate.watches:
            stream.is_stalled = True
        await world.apply("a", replicas=2)
        await world.apply("b")
        await world.until(lambda: world.is_ready("b"), timeout_s=150)
        await world.serves("a", replicas=2)


async def break_watches(gate: Gate, line: bytes) -> None:
    """Send a line into every open watch. The operator closes each and comes again."""
    for stream in list(gate.watches):
        await stream.write(line)


NONSENSE = (
    json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd: PrevKv=nil"}}).encode(),
    b'{"type": "MODIFIED", "object": {"metadata"',
    b'{"type": "MODIFIED", "object": null}',
    b"<html>502 Bad Gateway</html>",
)


async def test_nonsense_inside_a_watch_leaves_nobody_deaf(world: World) -> None:
    """F7: each time the stream is given up, a new one is opened, and what is changed afterwards is seen through it."""
    async with world.gate() as (gate, url), world.operator(url=url, resync_seconds=NEVER):
        await world.apply("a")
        await world.serves("a")
        for number, line in enumerate(NONSENSE):
            before = list(gate.watches)
            await break_watches(gate, line)
            await world.until(partial(is_replaced, gate, before))
            await world.apply(f"b{number}")
            await world.serves(f"b{number}")
        await world.serves("a")


def is_replaced(gate: Gate, before: list[WatchStream]) -> bool:
    """Return whether none of the watches is one of before, and as many are open again."""
    return len(gate.watches) >= len(before) and not set(before) & set(gate.watches)


async def test_a_call_that_was_done_but_never_answered_is_not_done_twice(world: World) -> None:
    """The connection is cut after the server has done each write for the first time."""
    cut: set[tuple[str, str]] = set()

    async def hang_up_once(call: Call, _: int) -> None:
        if call.is_write and not call.is_lease and (call.method, call.path) not in cut:
            cut.add((call.method, call.path))
            raise Hangup

    async with world.gate() as (gate, url), world.operator(url=url) as operator:
        gate.after = hang_up_once
        await world.apply("a", replicas=2)
        await world.serves("a", replicas=2)
        assert len(cut) >= 6
        assert operator.exit_codes == []


async def test_a_storm_of_foreign_patches_is_not_answered_with_a_storm(world: World) -> None:
    """F8: somebody annotates the object and its pod over and over; none of it is ours, so nothing is written."""
    async with world.operator() as operator:
        await world.apply("a")
        await world.serves("a")
        [pod] = world.pods("a")
        written = world.writes()
        for number in range(100):
            note = {"annotations": {"somebody.example/number": str(number)}, "namespace": world.namespace}
            await world.kube.apply(INFERENCE_DEPLOYMENTS, {"metadata": {"name": "a", **note}}, field_manager="somebody")
            metadata = {"name": pod["metadata"]["name"], **note}
            await world.kube.apply(PODS, {"metadata": metadata}, field_manager="somebody")
        await world.apply("a", replicas=2)
        await world.serves("a", replicas=2)
        during = [line for line in world.writes()[len(written) :] if "-0 " in line]
        assert during == [], "the pod that was there is left alone"
        assert operator.exit_codes == []


async def test_a_child_that_somebody_bends_is_bent_back(world: World) -> None:
    """F8: somebody fights over the Service; the last word is ours, and there is no write per second without end."""
    async with world.operator():
        await world.apply("a")
        await world.serves("a")
        right = (await world.kube.get(SERVICES, world.namespace, "a") or {})["spec"]["selector"]
        for number in range(20):
            bent = {"metadata": {"name": "a", "namespace": world.namespace}, "spec": {"selector": {"app": str(number)}}}
            await world.kube.apply(SERVICES, bent, field_manager="somebody")

        async def is_right() -> bool:
            service = await world.kube.get(SERVICES, world.namespace, "a")
            return bool(service and service["spec"]["selector"] == right)

        await world.eventually(is_right)
        assert len([line for line in world.writes() if " services " in line]) <= 22
