"""Kill one process after the other at every step of a switch, while clients go on calling; the devices' books judge."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from grpc import aio

from bench.fleet.cluster import FLEET
from bench.fleet.operators import Operator
from bench.ladder.gateway_process import HOST, PORT, GatewayProcess, operator_environment
from bench.models import ensure_model
from bench.slots import victims
from bench.slots.findings import Campaign
from bench.slots.switches import prepare
from bench.slots.victims import CASES, Fronts, Phase, Victim
from bench.slots.world import POOL, World
from dormouse_api.limits import channel_options
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

MEMBERS = tuple(f"m{number}" for number in range(6))
NUM_GPUS, NUM_CLIENTS = 2, 4
NUM_TOKENS, PROMPT = 24, tuple(range(3, 40))
AGAIN_S, CALL_S = 0.2, 280.0
PAUSE_S = 1.0  # between two kills, at the least
CALM_ANSWERS, CALM_S = 4, 15.0  # before every second kill there are so many answers, unless that takes too long
MOMENT_S = 20.0  # to find a victim in its phase
LOOK_S = 0.002
LONGEST_S = 1800.0  # of all rounds: where that is over, what was found until then counts
FRONTS_S = 2.0  # so long the processes that were found are believed to be all
NOBODY_THERE = (  # how it is told that no gateway is there to which a Service would send anybody
    "failed to connect",
    "this gateway is still learning",
)


@dataclass(slots=True)
class Calls:
    """What clients saw."""

    right: list[int] = field(default_factory=list)  # the tokens that every answer has
    answered: int = 0
    wrong: int = 0
    longest_s: float = 0.0  # that a call took which was answered
    again: Counter[str] = field(default_factory=Counter)  # calls that were made again, by what ended them
    lost: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"{self.answered} answered, {self.wrong} wrong, {self.lost.total()} lost, {self.longest_s:.1f} s at most"

    def take(self, tokens: list[int], took_s: float) -> None:
        """Take an answer: all models are the same, and so is the request."""
        self.right = self.right or tokens
        self.answered += 1
        self.longest_s = max(self.longest_s, took_s)
        self.wrong += tokens != self.right


async def campaign(world: World, rounds: int, seed: int) -> Campaign:
    """Kill each victim in each phase so often. Raises FleetError if anybody is not served in the end."""
    await prepare(world, ensure_model("tiny"), MEMBERS, num_gpus=NUM_GPUS)
    calls, stop = Calls(), asyncio.Event()
    rngs = [random.Random(f"{seed}, client {number}") for number in range(NUM_CLIENTS)]
    clients = [asyncio.create_task(_call(world, calls, stop, rng)) for rng in rngs]
    killed: Counter[str] = Counter()
    fronts = Fronts()
    end_s = time.monotonic() + LONGEST_S
    for phase, victim in _cases(rounds, random.Random(seed)):
        if time.monotonic() > end_s:
            break
        await asyncio.sleep(PAUSE_S)
        if killed.total() % 2:  # the others strike in the middle of what the last one left
            await _calm(calls)
        if await _strike(world, fronts, phase, victim):
            killed[f"{victim}, {phase}"] += 1
            world.say(f"kill {killed.total()}: {victim}, {phase}; {calls}")
    answered = calls.answered
    await world.until(
        "calls to be answered on", lambda: calls.answered >= answered + 2 * len(MEMBERS), timeout_s=CALL_S
    )
    stop.set()
    await asyncio.gather(*clients)
    marks = world.marks().values()
    found = Campaign(
        seed=seed,
        longest_s=calls.longest_s,
        killed=dict(killed),
        answered=calls.answered,
        wrong=calls.wrong,
        again=dict(calls.again),
        lost=dict(calls.lost),
        most_awake=max(mark.most_awake for mark in marks),
        over_size_bytes=max(mark.over_size_bytes for mark in marks),
        over_budget_bytes=max(mark.over_budget_bytes for mark in marks),
    )
    world.say(str(found))
    return found


async def _calm(calls: Calls) -> None:
    """Wait for answers, but not for long."""
    enough, end_s = calls.answered + CALM_ANSWERS, time.monotonic() + CALM_S
    while calls.answered < enough and time.monotonic() < end_s:  # noqa: ASYNC110  # calls tell nobody of changes
        await asyncio.sleep(LOOK_S)


def _cases(rounds: int, rng: random.Random) -> Iterator[tuple[Phase, Victim]]:
    return (case for _ in range(rounds) for case in rng.sample(CASES, len(CASES)))


async def _strike(world: World, fronts: Fronts, phase: Phase, victim: Victim) -> bool:
    """Kill a victim as soon as a slot is in a phase; return False if none came to be in it."""
    deadline_s = time.monotonic() + MOMENT_S
    while time.monotonic() < deadline_s:
        fronts.refresh(pod["metadata"]["uid"] for pod in world.seen.pods.values())
        until_s = time.monotonic() + FRONTS_S
        while time.monotonic() < until_s:
            for slot in world.seen.pools[POOL].get("slots", ()):
                if slot["phase"] == phase and _kill(world, fronts, slot, victim):
                    return True
            await asyncio.sleep(LOOK_S)
    return False


def _kill(world: World, fronts: Fronts, slot: dict[str, object], victim: Victim) -> bool:
    if victim == "operator":
        world.operator.process.kill()
        world.operator.process.wait()
        world.operator = Operator(world.cluster, 0, operator_environment())
        return True
    if victim == "gateway":
        world.gateway.process.kill()
        world.gateway.process.wait()
        world.gateway = GatewayProcess(world.cluster)
        return True
    pods = world.seen.pods_of(victims.replica_of(slot, victim))
    pids = [pid for pod in pods for pid in fronts.pids_of(victim, pod["metadata"]["uid"])]
    for pid in pids:
        victims.kill(pid)
    return bool(pids)


async def _call(world: World, calls: Calls, stop: asyncio.Event, rng: random.Random) -> None:
    """Call one model after the other until told to stop; a call that a killed gateway ended is made again."""
    async with aio.insecure_channel(f"{HOST}:{PORT}", options=channel_options()) as channel:
        stub: rpc.InferenceAsyncStub = rpc.InferenceStub(channel)
        while not stop.is_set():
            await _ask(stub, rng.choice(MEMBERS), world, calls)


async def _ask(stub: rpc.InferenceAsyncStub, model: str, world: World, calls: Calls) -> None:
    """Make one call. What ends it is a loss, unless the gateway that was asked has been killed since."""
    message = pb.GenerateRequest(
        model=f"{FLEET}/{model}",
        token_ids=pb.TokenIds(ids=PROMPT),
        sampling_params=pb.SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True),
    )
    gateway, asked_s = world.gateway, time.monotonic()
    try:
        answers = [answer async for answer in stub.Generate(message, timeout=CALL_S)]
    except aio.AioRpcError as error:
        words = error.details() or ""
        has_gone = world.gateway is not gateway or words.startswith(NOBODY_THERE)
        (calls.again if has_gone else calls.lost)[f"{error.code().name}: {words[:80]}"] += 1
        await asyncio.sleep(AGAIN_S)
    else:
        calls.take([token for answer in answers for token in answer.token_ids], time.monotonic() - asked_s)
