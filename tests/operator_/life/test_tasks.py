"""Models that make vectors keep no cache: 0 blocks are agreed on, and everything else is as for text."""

from __future__ import annotations

from dormouse_kube.api import PODS
from dormouse_operator.model import WorkerState
from tests.operator_.kit import SWAP, passes, revisions, serving, uids


async def test_workers_without_a_cache_agree_on_0_blocks_and_serve(rig):
    await rig.serving(replicas=2, task="embed")
    assert rig.status["phase"] == "Active"
    assert rig.status["kvCache"]["numGpuBlocks"] == 0
    assert [rig.worker(i).commands for i in (0, 1)] == [["initialize_cache"]] * 2
    assert rig.condition("MemoryProfiled") == (
        *("True", "Profiled"),
        "the model keeps no cache, and its largest pass fits",
    )
    assert rig.condition("BlocksAgreed")[2] == "blocks agreed: 0, as the model keeps no cache"
    assert rig.condition("CacheAllocated") == ("True", "Allocated", "2 of 2 workers hold 0 blocks")
    assert [event for event in rig.events if event.startswith("BlocksAgreed")] == [
        "BlocksAgreed: blocks agreed: 0, as the model keeps no cache"
    ]


async def test_a_model_that_makes_text_does_not_serve_with_0_blocks(rig):
    rig.node.blocks = {"0": 0}
    rig.apply()
    await rig.until_profiled()
    await rig.settle()
    assert rig.condition("MemoryProfiled")[:2] == ("False", "InsufficientMemory")
    assert rig.worker().commands == []
    assert serving(rig) == []


async def test_nobody_is_asked_and_nothing_written_at_rest(rig):
    await rig.serving(replicas=2, task="embed")
    rig.kube.calls.clear()
    rig.workers.asked.clear()
    for _ in range(3):
        assert await rig.reconcile() is None
    assert rig.kube.mutations() == []
    assert not rig.workers.asked


async def test_a_restarted_operator_changes_nothing(rig):
    await rig.serving(replicas=2, task="embed")
    before = rig.status
    rig.restart_operator()
    rig.kube.calls.clear()
    await rig.settle()
    assert rig.kube.mutations() == []
    assert rig.status == before


async def test_a_replica_that_comes_later_leaves_the_agreement_as_it_is(rig):
    await rig.serving(task="embed")
    rig.apply(replicas=2, task="embed")
    await passes(rig, 3, load=False, least=1)
    assert rig.condition("BlocksAgreed")[:2] == ("True", "Agreed")
    await passes(rig, 4, least=1)
    assert len(serving(rig)) == 2


async def test_it_sleeps_and_wakes(rig):
    await rig.serving(replicas=2, task="embed")
    for level in (1, 2):
        rig.apply(replicas=2, task="embed", lifecycle={"desiredState": "Asleep", "sleepLevel": level})
        await rig.settle()
        assert rig.status["phase"] == "Asleep"
        assert [rig.worker(i).commands[-1] for i in (0, 1)] == [f"sleep {level}"] * 2
        rig.apply(replicas=2, task="embed", lifecycle={"desiredState": "Active"})
        await rig.settle()
        assert rig.status["phase"] == "Active"
        assert len(serving(rig)) == 2
    assert rig.worker().commands.count("initialize_cache") == 1


async def test_its_engine_ends_at_level_3_and_another_starts(rig):
    await rig.serving(task="embed")
    rig.apply(task="embed", lifecycle={"desiredState": "Asleep", "sleepLevel": 3})
    await rig.settle()
    assert rig.worker().state is WorkerState.STANDBY
    rig.apply(task="embed", lifecycle={"desiredState": "Active"})
    await passes(rig, 6)
    assert rig.status["phase"] == "Active"
    assert rig.worker().commands[-1] == "initialize_cache"


async def test_another_task_is_another_engine_and_is_rolled_out_with_pods_of_both_kinds(rig):
    await rig.serving(replicas=2)
    first = revisions(rig)
    rig.apply(replicas=2, task="embed")
    await passes(rig, 20, least=2)
    assert revisions(rig).isdisjoint(first)
    assert rig.status["kvCache"]["numGpuBlocks"] == 0
    assert all("--task=embed" in pod["spec"]["containers"][0]["args"] for pod in rig.kube.everything(PODS))
    rig.apply(replicas=2, task="generate")
    await passes(rig, 20, least=2)
    assert rig.status["kvCache"]["numGpuBlocks"] == 2000
    assert rig.condition("Progressing")[:2] == ("True", "Complete")


async def test_another_task_is_swapped_in_the_same_pod(rig):
    await rig.serving(rollout=SWAP)
    before = uids(rig)
    rig.apply(task="embed", rollout=SWAP)
    await rig.settle()
    assert uids(rig) == before
    assert "--task=embed" in rig.worker().arguments
    assert (rig.status["phase"], rig.status["kvCache"]["numGpuBlocks"]) == ("Active", 0)


async def test_auto_is_the_default_and_no_other_revision(rig):
    await rig.serving()
    first = revisions(rig)
    rig.apply(task="auto")
    await rig.settle()
    assert revisions(rig) == first
    assert not any(argument.startswith("--task") for argument in rig.worker().arguments)
