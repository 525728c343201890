"""Follows the objects of one kind. A stream that breaks, as on a starved machine, goes on from where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from bench.fleet.cluster import FLEET
from dormouse_kube.api import Kind, KubeApi, Resource
from dormouse_kube.errors import Unavailable

OnEvent = Callable[[Resource, bool], None]  # the object, and whether it is gone
AGAIN_S = 0.1


async def follow(kube: KubeApi, kind: Kind, on_event: OnEvent, *, label_selector: str = "") -> None:
    """Tell of every object of the fleet's namespace and of each change, until cancelled. Raises KubeError."""
    listed = await kube.list(kind, FLEET, label_selector=label_selector)
    for obj in listed.items:
        on_event(obj, False)  # noqa: FBT003  # callers name it
    version = listed.resource_version
    while True:
        watch = kube.watch(kind, FLEET, resource_version=version, label_selector=label_selector)
        with suppress(Unavailable):
            async for event in watch:
                version = event.object["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    on_event(event.object, event.type == "DELETED")
        await asyncio.sleep(AGAIN_S)
