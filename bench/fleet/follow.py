"""Follows the objects of one kind. The cluster is next door, so a stream that breaks ends the benchmark."""

from __future__ import annotations

from collections.abc import Callable

from bench.fleet.cluster import FLEET
from dormouse_kube.api import Kind, KubeApi, Resource

OnEvent = Callable[[Resource, bool], None]  # the object, and whether it is gone


async def follow(kube: KubeApi, kind: Kind, on_event: OnEvent, *, label_selector: str = "") -> None:
    """Tell of every object of the fleet's namespace and of each change, until cancelled. Raises KubeError."""
    listed = await kube.list(kind, FLEET, label_selector=label_selector)
    for obj in listed.items:
        on_event(obj, False)  # noqa: FBT003  # callers name it
    version = listed.resource_version
    while True:
        watch = kube.watch(kind, FLEET, resource_version=version, label_selector=label_selector)
        async for event in watch:
            version = event.object["metadata"]["resourceVersion"]
            if event.type != "BOOKMARK":
                on_event(event.object, event.type == "DELETED")
