"""A pass that has nothing to do writes nothing; whoever does not lead does nothing."""

import pytest

from dormouse_kube.api import SERVICES
from dormouse_operator.errors import NotLeading


async def test_nothing_is_written_and_nobody_is_asked_at_rest(rig):
    await rig.serving(replicas=2)
    rig.kube.calls.clear()
    rig.workers.asked.clear()
    for _ in range(3):
        assert await rig.reconcile() is None
    assert rig.kube.mutations() == []
    assert not rig.workers.asked


async def test_nothing_is_written_at_rest_asleep(rig):
    await rig.serving()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    rig.kube.calls.clear()
    assert await rig.reconcile() is None
    assert rig.kube.mutations() == []


async def test_a_restarted_operator_changes_nothing(rig):
    await rig.serving(replicas=2)
    before = rig.status
    rig.restart_operator()
    rig.kube.calls.clear()
    await rig.settle()
    assert rig.kube.mutations() == []
    assert rig.status == before


async def test_who_does_not_lead_writes_no_status_and_does_nothing(rig):
    await rig.serving()
    rig.leader.leads = False
    rig.kube.calls.clear()
    rig.apply(replicas=2)
    with pytest.raises(NotLeading):
        await rig.reconcile()
    assert rig.kube.mutations() == []


async def test_who_does_not_lead_does_nothing_even_where_the_status_stays_the_same(rig):
    await rig.serving()
    rig.leader.leads = False
    rig.kube.edit(SERVICES, "team", "tiny", lambda obj: obj["spec"].update(selector={"a": "b"}))
    with pytest.raises(NotLeading):
        await rig.reconcile()
    assert rig.kube.peek(SERVICES, "team", "tiny")["spec"]["selector"] == {"a": "b"}
