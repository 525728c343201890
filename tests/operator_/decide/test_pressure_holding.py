"""What a deployment keeps of its nodes' host memory, as its pods and their words tell."""

from __future__ import annotations

from dataclasses import replace

from dormouse_operator.decide.pressure import holding_of
from dormouse_operator.model import (
    Actuation,
    Ladder,
    Lifecycle,
    ModelSource,
    Parallelism,
    RecordedStatus,
    Rung,
    WorkerState,
)
from dormouse_operator.model.running import PodMemory
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_situation, a_worker, but
from tests.operator_.host_memory_kit import ASLEEP, LEVEL1, sleeping


def held(situation):
    return [(one.node, one.copy_bytes / GIB, one.engine_bytes / GIB, one.level) for one in holding_of(situation).pods]


def test_what_sleeps_at_level_1_keeps_what_its_workers_say_on_their_nodes():
    found = holding_of(sleeping(2, 3))
    assert [(one.node, one.copy_bytes) for one in found.pods] == [("node-0", 2 * GIB), ("node-1", 3 * GIB)]
    assert (found.reload_s, found.called, found.deepest) == (3.0, LEVEL1.idle_since, 3)


def test_a_wake_or_a_start_that_was_measured_says_what_a_reload_or_an_engine_takes():
    measured = RecordedStatus(last_actuation=Actuation("level2", 42.0, "request", ""))
    assert holding_of(sleeping(2, recorded=measured)).reload_s == 42.0
    other = RecordedStatus(last_actuation=Actuation("level1", 0.5, "request", ""))
    assert (holding_of(sleeping(2, recorded=other)).reload_s, holding_of(sleeping(2)).start_s) == (2.0, 30.0)
    cold = RecordedStatus(last_actuation=Actuation("cold", 7.0, "request", ""))
    assert holding_of(sleeping(2, recorded=cold)).start_s == 7.0


def test_who_is_on_its_way_deeper_counts_as_being_there():
    assert held(sleeping(2)) == [("node-0", 2.0, 1.0, 1)]
    assert held(sleeping(2, recorded=RecordedStatus(ladder=replace(LEVEL1, rung=Rung.LEVEL2)))) == [
        ("node-0", 2.0, 1.0, 2)
    ]
    assert held(a_situation(a_worker(host_copy_bytes=GIB), None, pods=(a_pod(0, node="node"), a_pod(1)))) == [
        ("node", 1.0, 1.0, 0)
    ]
    assert held(a_situation(a_worker(WorkerState.STANDBY), pods=(a_pod(0, node="node"),))) == [("node", 0.0, 0.0, 3)]


def test_a_worker_is_not_believed_beyond_the_size_of_its_model():
    model_of = ModelSource("/models/tiny", None, "tiny", size_bytes=GIB)
    assert held(sleeping(500, model=model_of)) == [("node-0", 1.0, 1.0, 1)]
    assert held(sleeping(500)) == [("node-0", 500.0, 1.0, 1)], "nobody said how large it is"
    keeps = replace(a_deployment().engine, keep_prefix_cache=True)
    assert held(sleeping(500, model=model_of, engine=keeps)) == [("node-0", 500.0, 1.0, 1)], "and cache beside it"
    bound = replace(keeps, kv_cache_memory_bytes=GIB)
    assert held(sleeping(500, model=model_of, engine=bound)) == [("node-0", 2.0, 1.0, 1)]
    images = replace(a_deployment().engine, keep_encoder_cache=True)
    assert held(sleeping(500, model=model_of, engine=images)) == [("node-0", 2.0, 1.0, 1)], "and images"


def test_copies_of_a_group_are_on_the_nodes_of_all_its_pods():
    leader = a_pod(0, node="first", group_size=2, num_ranks=2)
    follower = replace(a_pod(0, node="second"), name="f", uid="f", ordinal=1, leader_uid=leader.uid)
    worker = a_worker(ASLEEP, sleep_level=1, host_copy_bytes=4 * GIB)
    deployment = a_deployment(parallelism=Parallelism(pipeline=2))
    situation = a_situation(worker, deployment=deployment, pods=(leader,), ladder=LEVEL1)
    whole = but(situation, followers={leader.uid: (follower,)})
    assert held(whole) == [("first", 2.0, 1.0, 1), ("second", 2.0, 1.0, 1)]
    assert holding_of(whole).deepest == 2, "level 3 is not for several pods"


def test_what_sleeps_by_order_may_not_go_and_what_serves_in_part_was_called_when_it_woke():
    assert holding_of(sleeping(2, ladder=None, lifecycle=Lifecycle("Asleep", 60))).deepest == 0
    assert holding_of(sleeping(2, ladder=None)).deepest == 0, "it is awake, or on its way"
    woken = Ladder(rung=Rung.ACTIVE, since=NOW, reason="request", awake=1)
    assert holding_of(sleeping(2, ladder=woken)).called == NOW


def test_whom_a_pool_has_asleep_may_go_though_it_has_no_ladder():
    situation = replace(sleeping(2, ladder=None), spares=frozenset({a_pod(0).name}))
    assert holding_of(situation).deepest == 3


def test_what_a_pod_asks_for_is_read_of_the_pod():
    asking = a_pod(0, node="node", memory=PodMemory(requested_bytes=GIB))
    assert holding_of(a_situation(a_worker(), pods=(asking,))).pods[0].requested_bytes == GIB


def test_of_who_is_not_asked_the_last_word_counts():
    pods = (a_pod(0, node="node"),)
    heard = holding_of(a_situation(a_worker(host_copy_bytes=3 * GIB), pods=pods))
    silent = holding_of(a_situation(a_worker(is_at_rest=True), pods=pods))
    assert silent.after(heard).pods[0].copy_bytes == 3 * GIB
    assert silent.after(None).pods[0].copy_bytes == 0
    assert heard.after(silent) == heard
