"""What happens to the cluster while the prober asks: each scenario is a load, and something done in its middle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from tests.prober.blows import kill, without_api_server
from tests.prober.cases import LONG_TOKENS
from tests.prober.loads import Load
from tests.prober.probe import Door, Manner, Prober, Record
from tests.prober.summary import GATEWAY_KILL, LEAST_STREAMS, WORKER_KILL
from tests.prober.world import Seen, World

STEADY, SWAPPED, LADDERS = "steady", "swapped", ("ladder-0", "ladder-1", "ladder-2", "ladder-3")
AWAY_S = 60.0
BEFORE_S, AFTER_S = 1.0, 2.0  # of every load: nothing happens yet, and nothing any more

ENGINE = {"maxNumSeqs": 64, "maxNumBatchedTokens": 512, "kvCacheMemory": "128Mi"}
SMALL = {"kvCacheMemory": "32Mi"}
RESOURCES = {  # a limit of one core is one thread: on few cores many workers would wait for each other's
    "requests": {"cpu": "50m", "memory": "256Mi"},
    "limits": {"cpu": "1", "memory": "1536Mi"},
}
NIGHTS = (  # how the ladders fall: hardly asleep they go, or they stay asleep for a while
    {"level1AfterSeconds": 1, "zeroAfterSeconds": 2},
    {"level1AfterSeconds": 1, "zeroAfterSeconds": 4},
)

# No more streams than one worker has seats for: a stall is to show how fast they move, not how long a seat is taken.
STREAMS = Load(rate=100, seconds=1.2, tokens=(300, LONG_TOKENS), is_fixed=True, is_long=True, intervals=(1, 4))
CONVERSATIONS = Load(rate=40, seconds=10, tokens=(20, 60))
OUTAGE = Load(rate=50)
USUAL = Load(rate=32)
SPARSE = Load(rate=8)
BURST = Load(rate=25, seconds=1.0)
STRAGGLER = Load(rate=1000, seconds=0.001, is_fixed=True)
SOMETIMES = 0.3


@dataclass(slots=True)
class Stage:
    """What scenarios share."""

    world: World
    prober: Prober
    manner: Manner
    seed: int
    kill_streams: Sequence[Record] = ()  # that ran when the worker was killed
    killed_gateway: str = ""
    cycles: int = 0  # that the ladders came down
    notes: dict[str, float] = field(default_factory=dict)  # seconds of each scenario

    def rng(self, name: str) -> random.Random:
        """Return the dice of one scenario: the same seed, the same plan, whatever the others do."""
        return random.Random(f"{self.seed}/{name}")

    @asynccontextmanager
    async def load(self, scenario: str, model: str, load: Load, manner: Manner | None = None) -> AsyncIterator[None]:
        """Ask while the context lasts, and a little before and after."""
        stop, begin_s = asyncio.Event(), self.prober.now_s
        sending = asyncio.create_task(
            self.prober.send(
                load,
                scenario=scenario,
                model=model,
                manner=manner or self.manner,
                rng=self.rng(scenario),
                stop=stop,
            )
        )
        try:
            await asyncio.sleep(BEFORE_S)
            yield
            await asyncio.sleep(AFTER_S)
        finally:
            stop.set()
            await sending
            self.notes[scenario] = round(self.prober.now_s - begin_s, 1)


async def kill_a_worker(stage: Stage) -> None:
    """SIGKILL one of two workers while 50 streams run."""
    await stage.world.until(STEADY, lambda seen: seen.serves(2))
    async with stage.load(WORKER_KILL, STEADY, STREAMS):
        async with asyncio.timeout(30):
            stage.kill_streams = await stage.prober.until_running(WORKER_KILL, LEAST_STREAMS)
        assert kill(stage.world.seen(STEADY).pods[:1]), "the worker's pod has no process here"
    await stage.prober.settle()
    await stage.world.until(STEADY, lambda seen: seen.serves(2) and _restarts(seen) == 1)


async def kill_a_gateway(stage: Stage) -> None:
    """SIGKILL one of two gateways; each client tries once more."""
    pods = await stage.world.gateways()
    assert len(pods) == 2, f"{len(pods)} gateways, not 2"
    addresses = {pod["metadata"]["name"]: f"{pod['status']['podIP']}:50051" for pod in pods}
    async with AsyncExitStack() as stack:
        doors = [Door(name, address) for _ in range(2) for name, address in addresses.items()]
        for door in doors:
            stack.push_async_callback(door.close)
        manner = replace(stage.manner, doors=doors, tries=2, is_patient=False)
        async with stage.load(GATEWAY_KILL, STEADY, CONVERSATIONS, manner):
            await asyncio.sleep(stage.rng("when").uniform(2, 4))
            stage.killed_gateway = pods[0]["metadata"]["name"]
            assert kill(pods[:1]), "the gateway's pod has no process here"
            await asyncio.sleep(4)
        await stage.prober.settle()
    await stage.world.wait_for_pods("gateway")


async def take_the_api_server_away(stage: Stage) -> None:
    """Leave the cluster without an API server for a minute."""
    async with stage.load("API server away", STEADY, OUTAGE), without_api_server():
        await asyncio.sleep(AWAY_S)
    await stage.prober.settle()
    await stage.world.until(STEADY, lambda seen: seen.serves(2))


async def roll_out_beside(stage: Stage) -> None:
    """Change the engine's settings: new pods come, then the old ones go."""
    before = stage.world.seen(STEADY).revision
    async with stage.load("roll-out Surge", STEADY, USUAL):
        await stage.world.patch(STEADY, {"engine": {"maxNumSeqs": 48}})
        await stage.world.until(STEADY, lambda seen: seen.has_rolled_out(before, 2))


async def roll_out_inside(stage: Stage) -> None:
    """Change the engine's settings where there is one worker: the engine is swapped in its pod."""
    before = stage.world.seen(SWAPPED).revision
    pods = _uids(stage.world.seen(SWAPPED))
    async with stage.load("roll-out SleepSwap", SWAPPED, SPARSE):
        await stage.world.patch(SWAPPED, {"engine": {"maxNumSeqs": 7}})
        await stage.world.until(SWAPPED, lambda seen: seen.has_rolled_out(before, 1))
    assert _uids(stage.world.seen(SWAPPED)) == pods, "the engine was not swapped in its pod"


async def scale_down(stage: Stage) -> None:
    """Go to four workers, and from there to one."""
    async with stage.load("scale to 4", STEADY, USUAL):
        await stage.world.patch(STEADY, {"replicas": 4})
        await stage.world.until(STEADY, lambda seen: seen.serves(4))
    async with stage.load("scale 4 to 1", STEADY, USUAL):
        await stage.world.patch(STEADY, {"replicas": 1})
        await stage.world.until(STEADY, lambda seen: seen.serves(1))


async def restart_a_worker(stage: Stage) -> None:
    """Delete the pod of the only worker."""
    [pod] = stage.world.seen(STEADY).pods
    async with stage.load("worker restarted", STEADY, SPARSE):
        await stage.world.kubectl("delete", "pod", pod["metadata"]["name"], "-n", stage.world.namespace)
        await stage.world.until(STEADY, lambda seen: seen.serves(1) and pod["metadata"]["uid"] not in _uids(seen))


async def restart_the_operator(stage: Stage) -> None:
    """Restart the operator's pods one after the other, as an upgrade does."""
    async with stage.load("operator restarted", STEADY, USUAL):
        await stage.world.restart("operator")


async def restart_the_gateways(stage: Stage) -> None:
    """Restart the gateways one after the other, as an upgrade does."""
    async with stage.load("gateway restarted", STEADY, USUAL):
        await stage.world.restart("gateway")


async def climb(stage: Stage, name: str, cycles: int) -> None:
    """Have a model fall to no pod and rise by a burst of requests, again and again.

    Some bursts come while the last pod still ends, and some stragglers while the model is falling.
    """
    rng = stage.rng(name)
    for _ in range(cycles):
        is_eager = rng.random() < SOMETIMES
        await stage.world.until(name, (lambda seen: seen.rung == "Zero") if is_eager else Seen.is_at_zero)
        stage.cycles += 1
        await _burst(stage, name, BURST, rng)
        if rng.random() < SOMETIMES:
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            await _burst(stage, name, STRAGGLER, rng)
        await stage.world.until(name, lambda seen: seen.rung == "Active")
    await stage.world.until(name, Seen.is_at_zero)


async def _burst(stage: Stage, name: str, load: Load, rng: random.Random) -> None:
    await stage.prober.send(load, scenario="ladder 0-1-0", model=name, manner=stage.manner, rng=rng)


async def climb_all(stage: Stage, cycles: int) -> None:
    """Do all cycles, over several models side by side."""
    begin_s = stage.prober.now_s
    shares = [len(range(index, cycles, len(LADDERS))) for index in range(len(LADDERS))]
    async with asyncio.TaskGroup() as tasks:
        for name, share in zip(LADDERS, shares, strict=True):
            tasks.create_task(climb(stage, name, share))
    await stage.prober.settle()
    stage.notes["ladder 0-1-0"] = round(stage.prober.now_s - begin_s, 1)


Scenario = Callable[[Stage], Awaitable[None]]
ALONE: tuple[Scenario, ...] = (kill_a_worker, kill_a_gateway, take_the_api_server_away)  # the first two are timed
BESIDE: tuple[Scenario, ...] = (  # what users and upgrades do, one after the other, while the ladders are climbed
    restart_the_operator,
    roll_out_beside,
    roll_out_inside,
    restart_the_gateways,
    scale_down,
    restart_a_worker,
)


async def make_deployments(world: World) -> None:
    """Apply the models of all scenarios and wait until they serve."""
    awake, auto = {"desiredState": "Active"}, {"desiredState": "Auto", "minActiveSeconds": 0}
    inside = {"strategy": "SleepSwap"}
    await world.apply(STEADY, replicas=2, engine=ENGINE, lifecycle=awake, resources=RESOURCES)
    await world.apply(SWAPPED, engine=SMALL, lifecycle=awake, resources=RESOURCES, rollout=inside)
    for index, name in enumerate(LADDERS):
        night = {**auto, **NIGHTS[index % len(NIGHTS)]}
        await world.apply(name, engine=SMALL, lifecycle=night, resources=RESOURCES)
    await world.until(STEADY, lambda seen: seen.serves(2))
    await world.until(SWAPPED, lambda seen: seen.serves(1))
    for name in LADDERS:
        await world.until(name, Seen.is_at_zero)


def _uids(seen: Seen) -> set[str]:
    return {pod["metadata"]["uid"] for pod in seen.pods}


def _restarts(seen: Seen) -> int:
    return sum(c["restartCount"] for pod in seen.pods for c in pod["status"].get("containerStatuses", ()))
