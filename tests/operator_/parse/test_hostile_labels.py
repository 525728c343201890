"""Labels of a pod that count are within what a spec can ask for; beyond that the pod is one that nobody wants."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dormouse_api.names import LABEL_GROUP_SIZE, LABEL_RANKS, LABEL_REPLICA, LABEL_WORKER_INDEX
from dormouse_kube.api import PODS
from dormouse_operator.model import Group
from dormouse_operator.parse import parse_pod
from tests.operator_.kit import PAIR, leaders, passes, serving, uids

HUGE = "99999999999"
COUNTING = (LABEL_REPLICA, LABEL_RANKS, LABEL_GROUP_SIZE, LABEL_WORKER_INDEX)


def pod_with(labels):
    return parse_pod({"metadata": {"name": "p", "uid": "u", "labels": labels}})


@pytest.mark.parametrize(
    "labels",
    [
        {LABEL_REPLICA: "1000"},
        {LABEL_RANKS: "0"},
        {LABEL_RANKS: "4097"},
        {LABEL_GROUP_SIZE: "0"},
        {LABEL_GROUP_SIZE: "65", LABEL_RANKS: "65"},
        {LABEL_GROUP_SIZE: "3"},
        {LABEL_GROUP_SIZE: "2", LABEL_RANKS: "3"},
        {LABEL_WORKER_INDEX: "64"},
        *({name: HUGE} for name in COUNTING),
    ],
)
def test_a_count_that_no_spec_can_ask_for_makes_a_pod_that_nobody_wants(labels):
    pod = pod_with({LABEL_REPLICA: "0", **labels})
    assert (pod.index, pod.num_ranks, pod.group_size, pod.ordinal) == (-1, 1, 1, 0)


def test_the_largest_counts_of_a_spec_are_taken():
    labels = {LABEL_REPLICA: "999", LABEL_RANKS: "4096", LABEL_GROUP_SIZE: "64", LABEL_WORKER_INDEX: "63"}
    pod = pod_with(labels)
    assert (pod.index, pod.num_ranks, pod.group_size, pod.ordinal) == (999, 4096, 64, 63)


TEXTS = st.integers(0, 200).map(str) | st.integers(0, 10**62).map(str) | st.text(max_size=63)


@given(labels=st.dictionaries(st.sampled_from(COUNTING), TEXTS))
@example(labels={LABEL_GROUP_SIZE: HUGE})
@example(labels={LABEL_GROUP_SIZE: "0"})
def test_no_labels_make_a_group_that_can_not_be_looked_through(labels):
    group = Group(pod_with(labels))
    assert len(group.missing) < 64
    assert group.broken_reason == ""
    assert group.pod_name(0) == "p"
    assert group.num_pod_ranks >= 1


@pytest.mark.parametrize("name", COUNTING)
async def test_a_worker_that_is_labelled_with_a_huge_count_is_replaced_and_the_pass_goes_on(rig, name):
    await rig.serving(replicas=2)
    odd = rig.kube.peek(PODS, "team", rig.pods[0])["metadata"]
    rig.kube.edit(PODS, "team", odd["name"], lambda pod: pod["metadata"]["labels"].update({name: HUGE}))
    await rig.reconcile()
    await passes(rig, 20, least=1)
    await rig.settle()
    assert odd["uid"] not in uids(rig)
    assert len(serving(rig)) == len(rig.pods) == 2
    assert rig.errors == []


async def test_a_leader_that_is_labelled_with_a_huge_group_ends_with_its_followers(rig):
    await rig.serving(parallelism=PAIR)
    before = uids(rig)
    labels = {LABEL_GROUP_SIZE: "64", LABEL_RANKS: HUGE}
    rig.kube.edit(PODS, "team", leaders(rig)[0], lambda pod: pod["metadata"]["labels"].update(labels))
    await passes(rig, 20)
    await rig.settle()
    assert not uids(rig) & before
    assert rig.status["phase"] == "Active"
