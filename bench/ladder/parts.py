"""The parts of the ladder's benchmark, each a coroutine over one running world."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence

from bench.fleet.deployments import names
from bench.gateway_figures import Held, count_overtaken
from bench.ladder.findings import ColdStart, Moment, Starts, Wake, to_cold_start, to_wake
from bench.ladder.stand_in import CROWD
from bench.ladder.world import World

ROTATION = 6  # deployments of a kind: while one is asked, the others fall asleep
AT_A_TIME = {1: 20, 5: 8, 25: 3}  # deployments at a time: how often
ARRIVAL_S = 2.0  # all requests of the crowd arrive within it, which is less than its wake takes
NIGHT = "night"
NIGHT_S, MOMENT_S = 75.0, 0.1
LEVELS: dict[int, dict[str, int | None]] = {
    1: {"level1AfterSeconds": 1},
    2: {"level1AfterSeconds": 1, "level2AfterSeconds": 2},
}


async def wakes(world: World, samples: int) -> list[Wake]:
    """Wake models from both levels, one at a time, each so often."""
    groups = {1: names(100, 100 + ROTATION), 2: names(200, 200 + ROTATION)}
    for level, group in groups.items():
        await world.add(group, **LEVELS[level])
    found = []
    for number in range(samples):
        for level, group in groups.items():
            found.append(await _wake(world, group[number % ROTATION], level))
    world.say(f"{len(found)} wakes")
    await _retire(world, [name for group in groups.values() for name in group])
    return found


async def _wake(world: World, name: str, level: int) -> Wake:
    await world.until_level(name, level)
    begin_s = time.monotonic()
    answer = await world.client.ask(name)
    return to_wake(level, answer, world.journal.of(name, since_s=begin_s))


async def zero(world: World) -> list[Starts]:
    """Bring models back from no pod at all, one, a few and many at a time."""
    most = max(AT_A_TIME)
    group = names(300, 300 + most)
    await world.add(group, level1AfterSeconds=None, zeroAfterSeconds=2)
    found = []
    for at_a_time, times in AT_A_TIME.items():
        starts = []
        for turn in range(times):
            first = turn * at_a_time % most
            starts += await _start(world, group[first : first + at_a_time])
        found.append(Starts(at_a_time, tuple(starts)))
        world.say(f"{len(starts)} starts from zero, {at_a_time} at a time")
    await _retire(world, group)
    return found


async def _start(world: World, group: Sequence[str]) -> list[ColdStart]:
    for name in group:
        await world.until_zero(name)
    begin_s = time.monotonic()
    answers = await asyncio.gather(*map(world.client.ask, group))
    return [
        to_cold_start(answer, world.journal.of(name, since_s=begin_s))
        for name, answer in zip(group, answers, strict=True)
    ]


async def _retire(world: World, group: Sequence[str]) -> None:
    """Have no more to do with these deployments."""
    for name in group:
        await world.stop(name)


async def held(world: World, count: int, reps: int) -> list[Held]:
    """Have so many requests arrive while one model wakes, again and again."""
    await world.add([CROWD], **LEVELS[1])
    await world.until_level(CROWD, 1)
    before_bytes = world.gateway.resident_bytes
    found = []
    for _ in range(reps):
        found.append(await _crowd(world, count, before_bytes))
        world.say(str(found[-1]))
    await _retire(world, [CROWD])
    return found


async def _crowd(world: World, count: int, before_bytes: int) -> Held:
    await world.until_level(CROWD, 1)
    world.gateway.begin_peak()
    begin_s = time.monotonic()
    answers = await world.client.ask_many(CROWD, count, ARRIVAL_S / count)
    entries = world.journal.of(CROWD, since_s=begin_s)
    for error in sorted({answer.error for answer in answers.values()} - {""}):
        world.say(f"not answered: {error}")
    return Held(
        num_asked=count,
        num_answered=sum(not answer.error for answer in answers.values()),
        num_overtaken=count_overtaken(
            {name: answer.told_s for name, answer in answers.items()},
            {entry.request_id: entry.at_s for entry in entries if entry.what == "request"},
        ),
        num_wakes=sum(entry.what == "waking" for entry in entries),
        peak_bytes=world.gateway.peak_bytes - before_bytes,
        hold_s=[answer.hold_s for answer in answers.values() if not answer.error],
    )


async def night(world: World) -> list[Moment]:
    """Let one model live through a night of a minute: an evening, silence, a late guest, a morning."""
    await world.add([NIGHT], level1AfterSeconds=3, level2AfterSeconds=7, zeroAfterSeconds=14)
    begin_s, asked_before = time.monotonic(), world.client.num_asked
    asking = asyncio.create_task(_live_through(world, begin_s))
    moments = []
    while (at_s := time.monotonic() - begin_s) < NIGHT_S:
        moments.append(
            Moment(
                at_s,
                state_of(world.seen.phase(NIGHT), world.seen.rung(NIGHT)),
                len(world.seen.pods.get(NIGHT, ())),
                await world.gateway.num_held(),
                world.client.num_asked - asked_before,
            )
        )
        await asyncio.sleep(MOMENT_S)
    await asking
    return moments


def state_of(phase: str, rung: str) -> str:
    """Return in a word how a deployment is: its phase, and how deep it sleeps where it does."""
    return rung if "Asleep" in phase and rung.startswith("Level") else phase


def arrivals_s() -> list[float]:
    """Return when the night's requests come: two busy times, and somebody between; in every run the same."""
    rng = random.Random("night")  # variety, nothing secret
    return sorted([*_busy(rng, 1.0, 12.0, 40), 20.0, 34.0, *_busy(rng, 58.0, 70.0, 60)])


def _busy(rng: random.Random, begin_s: float, end_s: float, count: int) -> Iterator[float]:
    return (rng.uniform(begin_s, end_s) for _ in range(count))


async def _live_through(world: World, begin_s: float) -> None:
    async with asyncio.TaskGroup() as tasks:
        for at_s in arrivals_s():
            await asyncio.sleep(max(0.0, begin_s + at_s - time.monotonic()))
            tasks.create_task(world.client.ask(NIGHT, max_tokens=40))
