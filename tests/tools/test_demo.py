"""What the demo applies is what its options say, and its time is the whole time."""

from __future__ import annotations

from pathlib import Path

import yaml

from dormouse_operator.manifests.pool import member_complaint
from dormouse_operator.parse import parse_deployment, parse_pool
from tools import demo_pools
from tools.demo import NAMESPACE, example, seconds_before, spent
from tools.progress import Progress


def applied(**ranks):
    manifest = example(**ranks)
    return parse_deployment({**manifest, "metadata": {**manifest["metadata"], "namespace": "team", "uid": "u1"}})


def test_the_demo_is_the_example_unless_ranks_are_asked_for():
    assert applied(tensor=1, pipeline=1).replicas == 2
    assert applied(tensor=1, pipeline=1).parallelism.num_ranks == 1
    group = applied(tensor=3, pipeline=2)
    assert (group.replicas, group.parallelism.tensor, group.parallelism.pipeline) == (1, 3, 2)
    assert example(tensor=3, pipeline=2)["spec"]["resources"]["limits"] == {"memory": "6144Mi"}


def test_the_time_at_the_end_counts_what_make_did_before():
    assert seconds_before("1000", now_s=1600.5) == 600.5
    progress = Progress(total=1, before_s=600.1)
    assert progress.elapsed_s > 600
    assert spent(progress).endswith(" s, 600 s of them before the first step")
    assert "before" not in spent(Progress(total=1))


def test_a_start_that_nobody_told_or_that_lies_ahead_counts_nothing():
    assert [seconds_before(told, now_s=5.0) for told in ("", "soon", "-3", "9")] == [0.0] * 4


def test_the_demo_s_pool_is_the_example_and_its_members_fit_into_it():
    texts = demo_pools.manifests(NAMESPACE, Path("/elsewhere"))
    volume, _, pool, *members = (one for text in texts for one in yaml.safe_load_all(text))
    assert volume["spec"]["hostPath"]["path"] == "/elsewhere"
    assert volume["spec"]["claimRef"]["namespace"] == NAMESPACE
    assert [one["metadata"]["name"] for one in members] == list(demo_pools.MEMBERS)
    shared = parse_pool(placed(pool))
    assert shared.key.name == demo_pools.POOL
    for one in members:
        deployment = parse_deployment(placed(one))
        assert deployment.placement.pool.name == demo_pools.POOL
        assert member_complaint(deployment, shared, deployment.replicas) == ""


def placed(manifest):
    """Return a manifest as the API server has it."""
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": NAMESPACE, "uid": "u1", "generation": 1}}
