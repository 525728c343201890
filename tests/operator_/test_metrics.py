"""What the operator's metrics show of deployments, sleeps, calls and errors."""

from __future__ import annotations

from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from tests.operator_.ladders import idle, rungs


async def test_metrics_show_a_deployment_until_it_is_gone(rig):
    await rig.serving(replicas=2)
    text = rig.metrics.render().decode()
    assert 'dormouse_replicas{deployment="tiny",namespace="team",state="active"} 2.0' in text
    assert 'dormouse_kv_blocks_agreed{deployment="tiny",namespace="team"} 2000.0' in text
    assert 'dormouse_actuation_seconds_count{path="cold"} 1.0' in text
    assert 'dormouse_actuation_seconds_count{path="level1"} 0.0' in text
    assert 'dormouse_deployment_ready{deployment="tiny",namespace="team"} 1.0' in text
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    await rig.reconcile()
    assert "tiny" not in rig.metrics.render().decode()


async def test_metrics_count_sleeps_and_wakes(rig):
    await rig.serving()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    rig.apply(lifecycle={"desiredState": "Active"})
    await rig.settle()
    rig.metrics.count_call("get", "pods", 200)
    rig.metrics.count_error("Unavailable")
    text = rig.metrics.render().decode()
    assert "dormouse_sleep_seconds_count 1.0" in text
    assert 'dormouse_actuation_seconds_count{path="level1"} 1.0' in text
    assert 'dormouse_kube_requests_total{code="200",resource="pods",verb="get"} 1.0' in text
    assert 'dormouse_reconcile_errors_total{kind="Unavailable"} 1.0' in text


async def test_a_sleep_that_leaves_no_worker_is_told_and_has_no_time(rig):
    await idle(rig, "Zero")
    assert len(rungs(rig)) == 3
    assert "dormouse_sleep_seconds_count 2.0" in rig.metrics.render().decode()
