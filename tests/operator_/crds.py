"""Definitions of custom resources: through a schema, and at a real API server under a group of the test's own."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from dormouse_kube.api import Kind
from dormouse_kube.client import KubeClient
from dormouse_kube.errors import NotFound
from tools.kubectl import Cluster

CRDS = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
Schema = dict[str, Any]


def definition(plural: str) -> dict[str, Any]:
    """Return the definition as it stands in the tree."""
    text = (Path(__file__).parents[2] / "crds" / f"{plural}.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every property below a schema with its path."""
    for name, node in schema.get("properties", {}).items():
        yield f"{path}.{name}", node
        yield from nodes(node, f"{path}.{name}")
    if "items" in schema:
        yield f"{path}[]", schema["items"]
        yield from nodes(schema["items"], f"{path}[]")


def loose(schema: Schema) -> list[str]:
    """Return the paths below which a user may write without end."""
    return [
        path
        for path, node in nodes(schema)
        if (node.get("type") == "string" and not ({"maxLength", "enum"} & node.keys()))
        or (node.get("type") == "array" and "maxItems" not in node)
        or ("additionalProperties" in node and "maxProperties" not in node)
    ]


@asynccontextmanager
async def served_kind(cluster: Cluster, crd: dict[str, Any]) -> AsyncIterator[tuple[KubeClient, Kind]]:
    """Yield a client and the kind as the server knows it: an installed release is not disturbed."""
    group = f"schema-{uuid.uuid4().hex[:8]}.dormouse.dev"
    crd = copy.deepcopy(crd)
    names = crd["spec"]["names"]
    crd["metadata"] = {"name": f"{names['plural']}.{group}"}
    crd["spec"]["group"] = group
    crd["spec"]["names"] = {name: value for name, value in names.items() if name not in {"shortNames", "categories"}}
    kind = Kind(f"{group}/v1alpha1", names["kind"], names["plural"])
    async with await KubeClient.connect(
        kubeconfig=cluster.kubeconfig or None, context=cluster.context or None
    ) as client:
        await client.create(CRDS, crd)
        try:
            await _until_served(client, kind)
            yield client, kind
        finally:
            await client.delete(CRDS, "", crd["metadata"]["name"])


async def _until_served(client: KubeClient, kind: Kind) -> None:
    """Wait until the server serves the new kind."""
    async with asyncio.timeout(90):
        while True:
            try:
                await client.list(kind, "default")
            except NotFound:
                await asyncio.sleep(0.2)
            else:
                return
