"""The seam to the Kubernetes API: what operator and gateway need, on plain mappings, and nothing more.

Two implementations share one contract test: `client.KubeClient` (kubernetes.aio) and `testing.FakeKube` (in memory).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Resource = Mapping[str, Any]  # a Kubernetes object as the API server speaks it; parsed once at the edge of each part


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and where the API server keeps it."""

    api_version: str  # "v1", "coordination.k8s.io/v1", …
    kind: str
    plural: str
    namespaced: bool = True


PODS = Kind("v1", "Pod", "pods")
NODES = Kind("v1", "Node", "nodes", namespaced=False)
ENDPOINT_SLICES = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
SERVICES = Kind("v1", "Service", "services")
EVENTS = Kind("v1", "Event", "events")
SECRETS = Kind("v1", "Secret", "secrets")
CLAIMS = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
DISRUPTION_BUDGETS = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICIES = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DAEMON_SETS = Kind("apps/v1", "DaemonSet", "daemonsets")
RESOURCE_CLAIMS = Kind("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
INFERENCE_POOLS = Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools")
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases")
INFERENCE_DEPLOYMENTS = Kind("inference.dormouse.dev/v1alpha1", "InferenceDeployment", "inferencedeployments")
GPU_POOLS = Kind("inference.dormouse.dev/v1alpha1", "GpuPool", "gpupools")
INFERENCE_ADAPTERS = Kind("inference.dormouse.dev/v1alpha1", "InferenceAdapter", "inferenceadapters")
INFERENCE_KEYS = Kind("inference.dormouse.dev/v1alpha1", "InferenceKey", "inferencekeys")


@dataclass(frozen=True, slots=True)
class ResourceList:
    """A list and the resource version from which a watch continues it."""

    items: tuple[Resource, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change. BOOKMARK carries a resource version only."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Resource


class KubeApi(Protocol):
    """Raises only `errors.KubeError` and its kinds. No method retries; whoever calls decides."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Resource | None:
        """Return the object, None if it does not exist."""
        ...

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "") -> ResourceList:
        """Return all objects of one namespace, or of all namespaces (None)."""
        ...

    def pages(self, kind: Kind, namespace: str | None, *, label_selector: str = "") -> AsyncIterator[ResourceList]:
        """Yield the same objects in pieces, at least one: nobody has to hold all at once.

        Every piece carries the version of the whole list. Raises Gone when the reader was too slow.
        """
        ...

    def watch(
        self, kind: Kind, namespace: str | None, *, resource_version: str, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes after `resource_version`, bookmarks included, until the server ends the watch.

        Raises Gone when the version is too old, Unavailable when the stream breaks or stalls.
        """
        ...

    async def create(self, kind: Kind, obj: Resource) -> Resource:
        """Create the object and return it as stored. Raises Conflict if it exists."""
        ...

    async def apply(self, kind: Kind, obj: Resource, *, field_manager: str, subresource: str = "") -> Resource:
        """Server-side apply, forced on our own fields; return the object as stored.

        With metadata.resourceVersion in `obj` the apply is conditional: Conflict if the object changed.
        """
        ...

    async def replace(self, kind: Kind, obj: Resource) -> Resource:
        """Replace the object; metadata.resourceVersion must be that of the stored one, else Conflict."""
        ...

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any], *, resource_version: str = ""
    ) -> Resource:
        """Merge-patch the status subresource (a key set to None is removed). Raises NotFound.

        With `resource_version`, Conflict if the object is no longer in that version.
        """
        ...

    async def patch_scale(
        self, kind: Kind, namespace: str, name: str, *, replicas: int, field_manager: str, resource_version: str = ""
    ) -> Resource:
        """Set spec.replicas through the scale subresource; return the Scale as stored.

        Raises NotFound; with `resource_version`, Conflict if the object is not of this version any more. (A UID in the
        patch would not do: for custom resources the server does not look at it.)
        """
        ...

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_period_s: int | None = None
    ) -> Resource | None:
        """Ask for deletion; no error if the object is gone. With `uid`, Conflict if it is another object by now.

        Return the object as it ends, None where there is nothing more to see of it.
        """
        ...
