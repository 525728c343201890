"""One KubeApi to test against: the fake always, the real client where a cluster is there."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from dormouse_kube.api import Kind, KubeApi
from dormouse_kube.client import KubeClient
from dormouse_kube.testing import FakeKube
from tools.kubectl import Cluster

NAMESPACES = Kind("v1", "Namespace", "namespaces", namespaced=False)


@dataclass(frozen=True)
class Server:
    """An API and a namespace of the test's own."""

    api: KubeApi
    namespace: str

    def is_fake(self) -> bool:
        return isinstance(self.api, FakeKube)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    if request.param == "fake":
        yield Server(FakeKube(), "test")
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    async with await KubeClient.connect(
        kubeconfig=cluster.kubeconfig or None, context=cluster.context or None
    ) as client:
        name = f"kube-contract-{uuid.uuid4().hex[:8]}"
        await client.create(NAMESPACES, {"metadata": {"name": name}})
        try:
            yield Server(client, name)
        finally:
            await client.delete(NAMESPACES, "", name)
