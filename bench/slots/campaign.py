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
MOMENT_S = 20.0  # to find a victim in its phase
LOOK_S = 0.002
LONGEST_S = 1800.0  # of all rounds: where that is over, what was found until then counts
FRONTS_S = 2.0  # so long the processes that were found are believed to be all
NOT_LOST = {"UNAVAILABLE", "CANCELLED", "INTERNAL"}  # with the gateway's own end; a client comes again


@dataclass(slots=True)
class Calls:
    """What clients saw."""

    right: list[int] = field(default_factory=list)  # the tokens that every answer has
    answered: int = 0
    wrong: int = 0
    again: Counter[str] = field(default_factory=Counter)  # calls that were made again, by what ended them
    lost: Counter[str] = field(default_factory=Counter)

    def take(self, tokens: list[int]) -> None:
        """Take an answer: all models are the same, and so is the request."""
        self.right = self.right or tokens
        self.answered += 1
        self.wrong += tokens != self.right


async def campaign(world: World, rounds: int) -> Campaign:
    """Kill each victim in each phase so often. Raises FleetError if anybody is not served in the end."""
    await prepare(world, ensure_model("tiny"), MEMBERS, num_gpus=NUM_GPUS)
    calls, stop = Calls(), asyncio.Event()
    clients = [asyncio.create_task(_call(calls, stop, random.Random(seed))) for seed in range(NUM_CLIENTS)]
    killed: Counter[str] = Counter()
    fronts = Fronts()
    end_s = time.monotonic() + LONGEST_S
    for phase, victim in _cases(rounds):
        if time.monotonic() > end_s:
            break
        await asyncio.sleep(PAUSE_S)
        if await _strike(world, fronts, phase, victim):
            killed[f"{victim}, {phase}"] += 1
    answered = calls.answered
    await world.until(
        "calls to be answered on", lambda: calls.answered >= answered + 2 * len(MEMBERS), timeout_s=CALL_S
    )
    stop.set()
    await asyncio.gather(*clients)
    marks = world.marks().values()
    found = Campaign(
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


def _cases(rounds: int) -> Iterator[tuple[Phase, Victim]]:
    return (case for _ in range(rounds) for case in CASES)


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
    find = fronts.front_of if victim.startswith("front") else fronts.engine_of
    pids = [pid for pod in world.seen.pods_of(victims.replica_of(slot, victim)) for pid in find(pod["metadata"]["uid"])]
    for pid in pids:
        victims.kill(pid)
    return bool(pids)


async def _call(calls: Calls, stop: asyncio.Event, rng: random.Random) -> None:
    """Call one model after the other until told to stop; a call that a killed gateway ended is made again."""
    async with aio.insecure_channel(f"{HOST}:{PORT}", options=channel_options()) as channel:
        stub: rpc.InferenceAsyncStub = rpc.InferenceStub(channel)
        while not stop.is_set():
            await _ask(stub, rng.choice(MEMBERS), calls)


async def _ask(stub: rpc.InferenceAsyncStub, model: str, calls: Calls) -> None:
    message = pb.GenerateRequest(
        model=f"{FLEET}/{model}",
        token_ids=pb.TokenIds(ids=PROMPT),
        sampling_params=pb.SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True),
    )
    try:
        answers = [answer async for answer in stub.Generate(message, timeout=CALL_S)]
    except aio.AioRpcError as error:
        name = error.code().name
        (calls.again if name in NOT_LOST else calls.lost)[f"{name}: {(error.details() or '')[:80]}"] += 1
        await asyncio.sleep(AGAIN_S)
    else:
        calls.take([token for answer in answers for token in answer.token_ids])
