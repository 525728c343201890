"""Workers say wrong, late or other things about their memory. F23 of the fault matrix, one rank per replica."""

from __future__ import annotations

import pytest

from dormouse_operator.testing.fake_worker import FakeWorker
from tests.faults.world import World


def reports(count: int) -> object:
    """Return what makes a worker report so many blocks."""

    def prepare(worker: FakeWorker) -> None:
        worker.num_gpu_blocks = count
        worker.finish_loading()

    return prepare


@pytest.mark.parametrize("count", [0, -1, -(2**40), 2**62])
async def test_a_count_out_of_bounds_is_no_report(world: World, count: int) -> None:
    """Zero, negative, absurd: not agreed on, told with the number, and another deployment is unaffected."""
    async with world.operator() as operator:
        world.kubelet.prepare = reports(count)  # type: ignore[assignment]
        await world.apply("bad")
        await world.until(lambda: world.kubelet.workers)
        await world.until(lambda: any(str(count) in c["message"] for c in world.status("bad").get("conditions", ())))
        world.kubelet.prepare = FakeWorker.finish_loading
        await world.apply("good")
        await world.serves("good")
        assert not world.is_ready("bad")
        assert all(worker.allocated in {0, 2000} for worker in world.kubelet.workers.values())
        assert operator.exit_codes == []


async def test_reports_of_another_pod_or_of_other_settings_do_not_count(world: World) -> None:
    """An address that was given anew: its worker answers, and is somebody else's."""

    def foreign(worker: FakeWorker) -> None:
        worker.pod_uid = "00000000-0000-0000-0000-000000000000"
        worker.num_gpu_blocks = 7
        worker.finish_loading()

    async with world.operator():
        world.kubelet.prepare = foreign
        await world.apply("a")
        [pod] = await world.until(
            lambda: [p for p in world.pods("a") if p["metadata"]["name"] in world.kubelet.workers]
        )
        worker = world.kubelet.worker(pod["metadata"]["name"])
        await world.until(lambda: any("another pod" in c["message"] for c in world.status("a").get("conditions", ())))
        assert worker.commands == [], "nobody is ordered about who is not ours"
        worker.pod_uid, worker.num_gpu_blocks = pod["metadata"]["uid"], 2000
        await world.serves("a")


async def test_a_worker_that_reports_late_joins_and_holds_nobody_up(world: World) -> None:
    """One of two is still loading after the agreement's time: the first serves; the late one joins with its count."""
    async with world.operator(agreement_seconds=1):
        held = []
        world.kubelet.prepare = lambda worker: held.append(worker) if held == [] else worker.finish_loading()
        await world.apply("a", replicas=2)
        await world.until(lambda: len(world.ready_pods("a")) == 1)
        assert not world.is_ready("a")
        held[0].finish_loading()
        await world.serves("a", replicas=2)


async def test_a_smaller_report_after_a_restart_is_agreed_on_without_a_gap_in_service(world: World) -> None:
    """F24: the restarted worker comes back smaller; the other one is drained and shrunk when it is no longer alone."""
    async with world.operator():
        await world.apply("a", replicas=2)
        await world.serves("a", replicas=2)
        first, second = (pod["metadata"]["name"] for pod in world.pods("a"))
        fewest: list[int] = []

        def shrink(worker: FakeWorker) -> None:
            worker.num_gpu_blocks = 1500
            worker.finish_loading()

        world.kubelet.prepare = shrink
        world.kubelet.crash(second)

        def is_agreed() -> bool:
            fewest.append(len(world.ready_pods("a")))
            return world.status("a")["kvCache"].get("numGpuBlocks") == 1500 and world.is_ready("a") and fewest[-1] == 2

        await world.until(is_agreed)
        await world.serves("a", replicas=2)
        assert {worker.allocated for worker in world.kubelet.workers.values()} == {1500}
        assert min(fewest) >= 1, "at no time was nobody there"
        commands = world.kubelet.worker(first).commands
        assert commands.count("initialize_cache") == 2
        assert world.kubelet.worker(first).epoch >= 1
