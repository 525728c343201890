"""The claims that adapters lie in, and the Secrets with a hub's tokens, as volumes of a worker's pod. Pure."""

from __future__ import annotations

from dormouse_operator.manifests.common import Manifest
from dormouse_operator.model import Deployment
from dormouse_operator.parse.adapters import ADAPTERS_ROOT, TOKENS_ROOT


def adapter_claims(deployment: Deployment) -> list[str]:
    """Return the claims, each once. Another one takes other pods; another adapter in one of them does not."""
    return sorted({*deployment.adapter_claims, *(each.claim for each in deployment.adapters if each.claim)})


def adapter_secrets(deployment: Deployment) -> list[str]:
    """Return the Secrets, each once. Another one takes other pods; another token in one of them does not."""
    return sorted({*deployment.adapter_secrets, *(each.secret for each in deployment.adapters if each.secret)})


def adapter_volumes(deployment: Deployment) -> list[Manifest]:
    """Return a volume for each claim and Secret. One that is missing fails the adapters that name it, not the pod."""
    claims: list[Manifest] = [
        {"name": f"adapters-{index}", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for index, claim in enumerate(adapter_claims(deployment))
    ]
    secrets: list[Manifest] = [
        {"name": f"adapter-tokens-{index}", "secret": {"secretName": secret, "optional": True}}
        for index, secret in enumerate(adapter_secrets(deployment))
    ]
    return claims + secrets


def adapter_mounts(deployment: Deployment) -> list[Manifest]:
    """Return where they are in the worker's container, in the order of `adapter_volumes`."""
    claims: list[Manifest] = [
        {"name": f"adapters-{index}", "mountPath": f"{ADAPTERS_ROOT}/{claim}", "readOnly": True}
        for index, claim in enumerate(adapter_claims(deployment))
    ]
    secrets: list[Manifest] = [
        {"name": f"adapter-tokens-{index}", "mountPath": f"{TOKENS_ROOT}/{secret}", "readOnly": True}
        for index, secret in enumerate(adapter_secrets(deployment))
    ]
    return claims + secrets
