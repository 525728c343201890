"""The seam to the cluster: what the commands need of the Kubernetes API, and its errors in words for a person.

Two implementations: `cluster_client.ClusterClient` (the real one) and `testing.FakeCluster` (in memory).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from dormouse_api.names import API_VERSION
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_kube.api import Kind, KubeApi, Resource
from dormouse_kube.errors import Forbidden, Invalid, KubeError, NotFound, Unavailable

NAMESPACES = Kind("v1", "Namespace", "namespaces", namespaced=False)
NODES = Kind("v1", "Node", "nodes", namespaced=False)
DEPLOYMENTS = Kind("apps/v1", "Deployment", "deployments")


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines of a container's log."""

    container: str
    tail_lines: int | None = None  # None = all that is kept
    since_s: int | None = None  # None = from the beginning
    follow: bool = False
    previous: bool = False  # of the container before the last restart


class Cluster(KubeApi, Protocol):
    """KubeApi and what only people need. Raises KubeError and its kinds."""

    @property
    def address(self) -> str:
        """Return where the API server is, for messages."""
        ...

    async def server_version(self) -> str:
        """Return the API server's version, such as v1.34.1."""
        ...

    async def patch(self, kind: Kind, namespace: str, name: str, change: Mapping[str, Any]) -> Resource:
        """Merge the change (RFC 7386) into the object; return it as stored. Raises NotFound."""
        ...

    async def may(self, verb: str, resource: str, group: str, namespace: str) -> bool:
        """Return whether the caller has this right; `resource` may name a subresource: pods/log."""
        ...

    def logs(self, namespace: str, pod: str, query: LogQuery) -> AsyncIterator[str]:
        """Yield a container's lines, each with the kubelet's RFC 3339 time in front."""
        ...

    async def metrics(self, namespace: str, pod: str, port: int) -> str:
        """Return what a pod's /metrics says, read through the API server."""
        ...

    def forward(self, namespace: str, pod: str, port: int) -> AbstractAsyncContextManager[int]:
        """Listen on a free port of 127.0.0.1, which it gives, and pass every connection on to the pod's port."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster and namespace the user means; None = what the kubeconfig says."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A cluster that answers, and the namespace that is meant."""

    cluster: Cluster
    namespace: str


Open = Callable[[Target], AbstractAsyncContextManager[Opened]]


@contextmanager
def kube_errors(address: str = "") -> Iterator[None]:
    """Turn what the Kubernetes API raised into a sentence and an exit code."""
    try:
        yield
    except KubeError as error:
        raise explain(error, address=address) from error


def explain(error: KubeError, *, address: str = "") -> CommandFailed:
    """Return what to tell."""
    if isinstance(error, Forbidden) and error.is_missing_right:
        return CommandFailed(f"a right is missing: {error}", code=ExitCode.NO_RIGHTS)
    if isinstance(error, Unavailable):
        return _unavailable(error, address)
    if isinstance(error, NotFound):
        return _not_found(error)
    if isinstance(error, Invalid) and "unknown field" in str(error):
        hint = "the cluster's Dormouse is older than this command line or the manifest"
        return CommandFailed(f"{error} ({hint})")
    no_login = str(error).startswith("no credentials")
    return CommandFailed(str(error), code=ExitCode.NO_CLUSTER if no_login else ExitCode.FAILED)


def _unavailable(error: Unavailable, address: str) -> CommandFailed:
    if error.status == 401:
        words = f"the API server {address} does not know who you are ({error}); log in again or correct the kubeconfig"
        return CommandFailed(words, code=ExitCode.NO_CLUSTER)
    if error.status:
        return CommandFailed(f"the API server {address} cannot answer now: {error}", code=ExitCode.NO_CLUSTER)
    words = f"no cluster answers at {address}: {error}; see --kubeconfig and --context"
    return CommandFailed(words, code=ExitCode.NO_CLUSTER)


def _not_found(error: NotFound) -> CommandFailed:
    """Tell a kind that the server does not have from an object that is not there."""
    is_kind = "could not find the requested resource" in str(error) or "page not found" in str(error)
    if not is_kind:
        return CommandFailed(str(error), code=ExitCode.NOT_FOUND)
    words = (
        f"this cluster does not know this kind of {API_VERSION}: Dormouse is not installed there, or is of a"
        " version that this command line does not speak (dormouse --version; helm list -A)"
    )
    return CommandFailed(words, code=ExitCode.NOT_FOUND)
