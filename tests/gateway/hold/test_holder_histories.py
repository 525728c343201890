"""Whatever happens to requests and workers: nothing leaks, and each caller is told where its worker came from."""

import asyncio
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_gateway.hold.wait import Start
from dormouse_gateway.testing.slices import slice_of
from dormouse_gateway.testing.workers import NAMESPACE, pod
from dormouse_kube.reflector import ObjectKey
from tests.gateway.hold.world import ASLEEP, POD, READY, TINY, World, ended, settled

STEPS = st.sampled_from(["ask", "ask", "ask", "cancel", "end", "wake", "sleep", "lose", "order", "serve", "delete"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 20), st.booleans()), max_size=40))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_no_request_and_no_worker_leaks(steps):
    asyncio.run(_play(steps))


async def _play(steps):
    world, tasks, num_asked = World(), [], 0
    for step, which, is_settled in steps:
        if step == "ask" and world.router.catalogue.get(TINY):
            done = asyncio.Event()
            tasks.append((world.ask(num_asked, until=done), done))
            num_asked += 1
            await settled()  # it has arrived
        elif step in {"cancel", "end"} and tasks:
            task, done = tasks[which % len(tasks)]
            task.cancel() if step == "cancel" else done.set()
        elif step in {"wake", "sleep", "lose"}:
            world.tell({"wake": READY, "sleep": ASLEEP, "lose": None}[step])
        elif step in {"order", "serve"}:
            state = "Asleep" if step == "order" else "Auto"
            world.put_deployment(engine={"maxNumSeqs": 2}, lifecycle={"desiredState": state})
        elif step == "delete":
            world.router.on_deployment(TINY, None)
        if is_settled:
            await settled()
        world.check()
        assert world.outstanding() <= 2
    await settled()
    assert world.got == sorted(world.got), "in the order of arrival"
    await ended(*(task for task, _ in tasks))
    assert (len(world.holder), world.outstanding(), world.is_wanted()) == (0, 0, False)
    assert len(world.ends) <= num_asked
    world.check()


def asleep(level):
    message = f"1 of 1 workers are asleep at level {level}; freed 1.00 GiB"
    return {"phase": "Asleep", "conditions": [{"type": "Asleep", "status": "True", "message": message}]}


class Life(World):
    """Brings the model to where a caller finds it when it is already on its way to serve."""

    def __init__(self):
        super().__init__()
        self.num_pods = 0

    def come_from(self, start):
        match start:
            case Start.LEVEL1 | Start.LEVEL2 | Start.LEVEL3:
                self.tell(ASLEEP)
                self.put_deployment(asleep(int(start[-1])))
                self.put_deployment({"phase": "Waking"})
                self.put_deployment({"phase": "Profiling" if start is Start.LEVEL3 else "Waking"})
            case Start.COLD:
                self.tell(ASLEEP)
                self.put_deployment({"phase": "Zero"})
                self.router.on_slice(POD, None)
                self.num_pods += 1
                self.put_pod(f"p{self.num_pods}")
                self.tell(ASLEEP)
                self.put_deployment({"phase": "Starting"})
            case Start.WARM:
                self.tell(READY)

    async def start_of_a_late_caller(self):
        """Return what a request is told that comes just before the worker serves."""
        done = asyncio.Event()
        done.set()
        task = self.ask("late", until=done)
        await settled()
        self.tell(READY)
        return (await task).start


@pytest.mark.parametrize("starts", list(permutations(Start, 3)), ids="-".join)
async def test_a_late_caller_is_told_where_its_worker_came_from_whatever_was_before(starts):
    life = Life()
    for start in (*starts, *starts):
        life.come_from(start)
        assert await life.start_of_a_late_caller() is start
    life.check()


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_what_slept_went_to_zero_and_starts_is_cold_though_it_served_nobody_between(level):
    life = Life()
    life.put_deployment(asleep(level))
    life.come_from(Start.COLD)
    assert await life.start_of_a_late_caller() is Start.COLD


async def test_of_several_workers_one_that_slept_is_enough_for_the_level():
    life = Life()
    life.put_deployment(asleep(2))
    other = pod("tiny-1", "tiny", "10.0.0.2:50051", ready=False)
    other["metadata"]["uid"] = "new"
    life.router.on_slice(ObjectKey(NAMESPACE, "tiny-1"), slice_of(other))
    life.put_deployment({"phase": "Waking"})
    assert await life.start_of_a_late_caller() is Start.LEVEL2
