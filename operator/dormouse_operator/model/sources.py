"""Where a deployment's model comes from: a claim, a hub, an image of a registry, or the worker's own container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PullPolicy = Literal["Always", "IfNotPresent", "Never"]


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One value of a Secret in the deployment's namespace."""

    name: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """A model that a hub serves, and the volume that keeps it: a claim, one that we make, or the pod's own."""

    repo: str  # ORG/NAME
    revision: str
    token: SecretKey | None = None
    claim: str | None = None  # the claim to mount; None = a volume that goes with the pod
    claim_size: str | None = None  # of the claim if the operator makes it; None = it does not
    storage_class: str | None = None  # of that claim; None = the cluster's default
    file: str = ""  # of GGUF files the one to take, by its name or quantization; "" = safetensors, or the only one


@dataclass(frozen=True, slots=True)
class ModelImage:
    """An image of a registry that holds the model, which the kubelet pulls and mounts."""

    reference: str  # as a container's image is named
    pull_policy: PullPolicy | None = None  # None = as Kubernetes chooses: Always for the tag latest, else IfNotPresent

    @property
    def repository(self) -> str:
        """Return the reference without its tag and digest."""
        folder, _, name = self.reference.partition("@")[0].rpartition("/")
        return f"{folder}/{name.partition(':')[0]}"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the model's directory is in the worker's container, and how it comes there."""

    path: str
    claim: str | None  # the PersistentVolumeClaim to mount, None for all but pvc://
    served_name: str
    hub: Hub | None = None  # of hf:// only
    size_bytes: int | None = None  # of the weights in memory, as the user says
    image: ModelImage | None = None  # of oci:// only


@dataclass(frozen=True, slots=True)
class PrePull:
    """Nodes fetch the model before a worker starts there: those that match, of those where a worker may be."""

    node_selector: Mapping[str, str]
