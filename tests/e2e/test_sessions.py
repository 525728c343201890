"""A session outlives its pod: it is evicted, as a drain does, and the next request finds its prefix at another pod.

localkube has one node, so nothing is cordoned: what a drain does to the pod is the eviction, and the volume comes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from tests.e2e.kit import Deployments, Manifest, Model
from tests.e2e.test_roles import counted
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

SESSION = [3 + (7 * number) % 89 for number in range(400)]
NUM_BLOCKS = 400 // 16 - 1  # the last token is always computed
KNOWN = 16 * NUM_BLOCKS
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "sessions"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
}


class Answer(NamedTuple):
    """What a stream said, and how much of the prompt was known."""

    tokens: list[int]
    cached: int


def ask(model: Model) -> Answer:
    params = pb.SamplingParams(temperature=0, max_tokens=8)
    messages = model.generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=SESSION), sampling_params=params))
    return Answer([token for each in messages for token in each.token_ids], messages[-1].usage.cached_tokens)


def evict(cluster: Cluster, pod: Manifest) -> None:
    """Do to a pod what a drain does."""
    metadata = {name: pod["metadata"][name] for name in ("name", "namespace")}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def test_the_session_of_an_evicted_pod_goes_on_at_the_next_one_with_its_prefix(
    cluster: Cluster, deployments: Deployments, model_of: Any, eventually: Callable[..., Any]
) -> None:
    cluster.apply(CLAIM, deployments.namespace)
    store = {"size": "64Mi", "claimName": "sessions"}
    name = deployments.apply("diary", engine={"kvCacheMemory": "64Mi", "kvStore": store})
    deployments.wait(name, "condition=Ready")
    eventually(lambda: model_of.answers(name, [5], 1))
    before = ask(model_of(name))
    assert before.cached == 0
    [pod] = deployments.pods(name)
    eventually(lambda: counted(deployments, pod["metadata"]["name"], "writes_total") >= NUM_BLOCKS)
    evict(cluster, pod)
    eventually(lambda: pod["metadata"]["uid"] not in [each["metadata"]["uid"] for each in deployments.pods(name)])
    assert ask(model_of(name)) == Answer(before.tokens, KNOWN)
