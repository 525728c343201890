"""Looks for a deployment's InferencePool. The kind is not ours: it may be missing, so nothing watches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_kube.api import ENDPOINT_SLICES, INFERENCE_POOLS, SERVICES, KubeApi
from dormouse_kube.errors import NotFound
from dormouse_operator.manifests import picker_service_name
from dormouse_operator.manifests.inference_pool import HTTP_PORT_NAME, is_near
from dormouse_operator.model import Deployment, Picker, PoolSeen


async def look_for_pool(
    kube: KubeApi, deployment: Deployment, picker: Picker | None, service: Mapping[str, Any] | None
) -> PoolSeen | None:
    """Return what there is where a pool is wanted, or was: then the deployment's Service still has the port.

    Without a picker none was ever made. Raises KubeError.
    """
    if picker is None or not (deployment.serving.inference_pool or _has_port(service)):
        return None
    key = deployment.key
    try:
        listed = await kube.list(INFERENCE_POOLS, key.namespace)
    except NotFound:
        return PoolSeen(is_known_kind=False)
    pool = next((each for each in listed.items if each["metadata"]["name"] == key.name), None)
    if is_near(deployment, picker):
        return PoolSeen(is_known_kind=True, pool=pool)
    name = picker_service_name(deployment)
    return PoolSeen(
        is_known_kind=True,
        pool=pool,
        address=_address(await kube.get(SERVICES, picker.namespace, picker.service)),
        service=await kube.get(SERVICES, key.namespace, name),
        ends=await kube.get(ENDPOINT_SLICES, key.namespace, name),
    )


def _address(service: Mapping[str, Any] | None) -> str:
    """Return a Service's own address, "" if it has none."""
    address: str = service["spec"].get("clusterIP", "") if service else ""
    return "" if address == "None" else address


def _has_port(service: Mapping[str, Any] | None) -> bool:
    ports = service["spec"].get("ports") or () if service else ()
    return any(port.get("name") == HTTP_PORT_NAME for port in ports)
