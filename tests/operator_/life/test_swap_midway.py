"""A swap that is under way: cut off, found again, or no longer what the spec says."""

from __future__ import annotations

import pytest

from dormouse_operator.errors import WorkerUnreachable
from dormouse_operator.model import WorkerState
from tests.operator_.kit import NEW, OLD, SWAP, passes, revisions, serving, uids


async def test_a_stopped_swap_is_remembered_by_a_new_operator_and_forgotten_with_the_spec(rig):
    await rig.serving(rollout=SWAP)
    rig.worker().swap_failure = "no"
    rig.apply(engine=NEW)
    await rig.settle()
    rig.restart_operator()
    await rig.settle()
    assert rig.worker().commands.count("swap_engine") == 1
    rig.apply(engine=OLD)
    await rig.settle()
    assert rig.condition("Progressing")[:2] == ("True", "Complete")
    assert len(serving(rig)) == 1
    rig.worker().swap_failure = ""
    rig.apply(engine=NEW)
    await rig.settle()
    assert rig.condition("Progressing")[:2] == ("True", "Complete")
    assert "--max-num-seqs=4" in rig.worker().arguments


async def test_a_swap_that_was_cut_off_is_found_and_finished(rig):
    """The call broke off, the worker went on: the new operator sees another engine in the pod and relabels it."""
    await rig.serving(rollout=SWAP)
    rig.apply(engine=NEW)
    await passes(rig, 1)
    rig.worker().refuse_next = [WorkerUnreachable("it does not answer in time")]
    await passes(rig, 3)
    rig.restart_operator()
    await rig.settle()
    assert len(serving(rig)) == 1
    assert rig.condition("Progressing")[1] == "Complete"


async def test_a_scale_up_during_a_swap_creates_only_what_is_missing(rig):
    await rig.serving(replicas=2, rollout=SWAP)
    before = uids(rig)
    rig.apply(engine=NEW)
    await passes(rig, 3)
    rig.apply(replicas=3)
    await passes(rig, 40)
    assert before < uids(rig)
    assert len(serving(rig)) == 3


@pytest.mark.parametrize("change", [{"rollout": {"strategy": "Surge"}}, {"engine": {"device": "cpu", "maxNumSeqs": 9}}])
async def test_a_change_of_mind_in_the_middle_of_a_drain_loses_nobody(rig, change):
    await rig.serving(rollout=SWAP)
    rig.worker().running_requests = 1
    rig.apply(engine=NEW)
    await passes(rig, 4)
    rig.apply(**change)
    rig.worker().running_requests = 0
    await passes(rig, 30)
    assert len(serving(rig)) == 1
    assert rig.condition("Progressing")[1] == "Complete"


async def test_a_change_of_mind_right_after_a_swap_waits_for_the_engine_to_serve(rig):
    await rig.serving(rollout=SWAP)
    first = revisions(rig)
    rig.apply(engine=NEW)
    while revisions(rig) == first:
        await passes(rig, 1)
    assert rig.worker().state is WorkerState.PROFILED
    before = uids(rig)
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 9})
    await passes(rig, 20)
    assert uids(rig) == before
    assert "--max-num-seqs=9" in rig.worker().arguments
    assert len(serving(rig)) == 1
    assert not [event for event in rig.events if event.startswith("SwapRefused")]


async def test_a_place_that_has_its_new_pod_already_needs_no_swap(rig):
    """The strategy changed in the middle of a Surge."""
    await rig.serving()
    [old] = rig.pods
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    rig.apply(rollout=SWAP)
    old_worker = rig.node.worker_of(old)
    await passes(rig, 20)
    assert "swap_engine" not in old_worker.commands
    assert old not in rig.pods
    assert len(serving(rig)) == 1


async def test_a_swap_under_way_to_a_spec_that_nobody_wants_any_more_is_waited_for(rig):
    await rig.serving(rollout=SWAP)
    rig.apply(engine=NEW)
    await passes(rig, 1)
    worker = rig.worker()
    worker.swapping_to, worker.state = "0123abcd", WorkerState.ASLEEP
    await passes(rig, 3)
    assert worker.commands == ["initialize_cache"]
    worker.swapping_to, worker.state, worker.settings_digest = "", WorkerState.PROFILED, "0123abcd"
    await passes(rig, 20)
    assert "--max-num-seqs=4" in worker.arguments
    assert len(serving(rig)) == 1


async def test_the_old_spec_again_takes_back_a_swap_under_way(rig):
    await rig.serving(rollout=SWAP)
    rig.apply(engine=NEW)
    await passes(rig, 1)
    worker = rig.worker()
    worker.swapping_to, worker.state = rig.status["rollout"]["revision"], WorkerState.ASLEEP
    rig.apply(engine=OLD)
    await passes(rig, 1)
    assert worker.commands[-1] == "swap_engine"
    assert worker.swapping_to == ""
    await rig.settle()
    assert len(serving(rig)) == 1
    assert rig.condition("Progressing")[1] == "Complete"


async def test_a_swap_that_is_found_under_way_is_waited_for_by_asking_for_it_again(rig):
    await rig.serving(rollout=SWAP)
    rig.apply(engine=NEW)
    await passes(rig, 1)
    worker = rig.worker()
    worker.swapping_to, worker.state = rig.status["rollout"]["revision"], WorkerState.WAKING
    worker.refuse_next = [WorkerUnreachable("it does not answer in time")]
    await passes(rig, 1)
    assert worker.commands[-1] == "swap_engine"
