"""One KubeApi to test against: the fake always, the real client where a cluster is there."""

import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dormouse_kube.api import Kind, KubeApi
from dormouse_kube.client import KubeClient
from dormouse_kube.testing import FakeKube

NAMESPACES = Kind("v1", "Namespace", "namespaces", namespaced=False)


@dataclass(frozen=True)
class Server:
    """An API and a namespace of the test's own."""

    api: KubeApi
    namespace: str

    def is_fake(self) -> bool:
        return isinstance(self.api, FakeKube)


def _kubeconfig() -> str | None:
    """Return the kubeconfig of a cluster that tests may use, None if there is none."""
    candidates = [os.environ.get("KUBECONFIG", ""), "/var/cache/dormouse/localkube/kubeconfig"]
    return next((path for path in candidates if path and Path(path).is_file()), None)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    if request.param == "fake":
        yield Server(FakeKube(), "test")
        return
    kubeconfig = _kubeconfig()
    if kubeconfig is None:
        pytest.skip("no cluster: neither KUBECONFIG nor a running localkube")
    async with await KubeClient.connect(kubeconfig=kubeconfig) as client:
        name = f"kube-contract-{uuid.uuid4().hex[:8]}"
        await client.create(NAMESPACES, {"metadata": {"name": name}})
        try:
            yield Server(client, name)
        finally:
            await client.delete(NAMESPACES, "", name)
