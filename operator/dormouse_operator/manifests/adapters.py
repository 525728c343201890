"""The claims that adapters lie in, as volumes of a worker's pod. Pure."""

from __future__ import annotations

from dormouse_operator.manifests.common import Manifest
from dormouse_operator.model import Deployment
from dormouse_operator.parse.adapters import ADAPTERS_ROOT


def adapter_claims(deployment: Deployment) -> list[str]:
    """Return the claims, each once. Another one takes other pods; another adapter in one of them does not."""
    return sorted({*deployment.adapter_claims, *(each.claim for each in deployment.adapters if each.claim)})


def adapter_volumes(deployment: Deployment) -> list[Manifest]:
    """Return a volume for each claim."""
    return [
        {"name": f"adapters-{index}", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for index, claim in enumerate(adapter_claims(deployment))
    ]


def adapter_mounts(deployment: Deployment) -> list[Manifest]:
    """Return where they are in the worker's container, in the order of `adapter_volumes`."""
    return [
        {"name": f"adapters-{index}", "mountPath": f"{ADAPTERS_ROOT}/{claim}", "readOnly": True}
        for index, claim in enumerate(adapter_claims(deployment))
    ]
