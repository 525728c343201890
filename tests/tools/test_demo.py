"""What the demo applies is what its options say."""

from __future__ import annotations

from dormouse_operator.parse import parse_deployment
from tools.demo import example


def applied(**ranks):
    manifest = example(**ranks)
    return parse_deployment({**manifest, "metadata": {**manifest["metadata"], "namespace": "team", "uid": "u1"}})


def test_the_demo_is_the_example_unless_ranks_are_asked_for():
    assert applied(tensor=1, pipeline=1).replicas == 2
    assert applied(tensor=1, pipeline=1).parallelism.num_ranks == 1
    group = applied(tensor=2, pipeline=2)
    assert (group.replicas, group.parallelism.tensor, group.parallelism.pipeline) == (1, 2, 2)
