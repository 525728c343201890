"""What every KubeApi promises: run against the fake, and against a real API server where there is one."""

import asyncio
from typing import Any

import pytest

from dormouse_kube.api import SERVICES, Kind, WatchEvent
from dormouse_kube.errors import Conflict, Invalid, KubeError, NotFound

CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps")
DEPLOYMENTS = Kind("apps/v1", "Deployment", "deployments")


def config_map(server: Any, name: str = "thing", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": server.namespace, "labels": {"side": "left"}}, "data": data}


async def test_any_text_can_be_applied(server):
    text = '\U0001f600 \x7f \x85 \x9f \u2028 \ufeff \\ud83d \\ " é \t\n'
    applied = await server.api.apply(CONFIG_MAPS, config_map(server, a=text), field_manager="mine")
    assert applied["data"]["a"] == text


async def test_what_is_created_can_be_read(server):
    made = await server.api.create(CONFIG_MAPS, config_map(server, a="1"))
    read = await server.api.get(CONFIG_MAPS, server.namespace, "thing")
    assert read is not None
    assert read["data"] == {"a": "1"}
    assert read["metadata"]["uid"] == made["metadata"]["uid"]
    assert (read["apiVersion"], read["kind"]) == ("v1", "ConfigMap")


async def test_what_does_not_exist_reads_as_none(server):
    assert await server.api.get(CONFIG_MAPS, server.namespace, "thing") is None


async def test_a_second_creation_conflicts(server):
    await server.api.create(CONFIG_MAPS, config_map(server))
    with pytest.raises(Conflict, match="thing"):
        await server.api.create(CONFIG_MAPS, config_map(server))


async def test_a_list_holds_the_selected_objects_with_their_kind(server):
    await server.api.create(CONFIG_MAPS, config_map(server, "one"))
    other = config_map(server, "two")
    other["metadata"]["labels"] = {"side": "right"}
    await server.api.create(CONFIG_MAPS, other)
    listed = await server.api.list(CONFIG_MAPS, server.namespace, label_selector="side=left")
    assert [(item["kind"], item["metadata"]["name"]) for item in listed.items] == [("ConfigMap", "one")]
    assert listed.resource_version


async def test_apply_creates_and_then_changes_only_its_own_fields(server):
    await server.api.apply(CONFIG_MAPS, config_map(server, a="1"), field_manager="mine")
    await server.api.apply(CONFIG_MAPS, config_map(server, b="2"), field_manager="theirs")
    after = await server.api.apply(CONFIG_MAPS, config_map(server, c="3"), field_manager="mine")
    assert after["data"] == {"b": "2", "c": "3"}


async def test_an_apply_that_changes_nothing_keeps_the_version(server):
    first = await server.api.apply(CONFIG_MAPS, config_map(server, a="1"), field_manager="mine")
    again = await server.api.apply(CONFIG_MAPS, config_map(server, a="1"), field_manager="mine")
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]


async def test_an_apply_with_an_old_version_conflicts(server):
    old = await server.api.apply(CONFIG_MAPS, config_map(server, a="1"), field_manager="mine")
    await server.api.apply(CONFIG_MAPS, config_map(server, a="2"), field_manager="mine")
    late = config_map(server, a="3")
    late["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await server.api.apply(CONFIG_MAPS, late, field_manager="mine")


async def test_a_replacement_needs_the_stored_version(server):
    first = dict(await server.api.create(CONFIG_MAPS, config_map(server, a="1")))
    second = await server.api.replace(CONFIG_MAPS, {**first, "data": {"a": "2"}})
    assert second["data"] == {"a": "2"}
    with pytest.raises(Conflict):
        await server.api.replace(CONFIG_MAPS, {**first, "data": {"a": "3"}})


async def test_a_replacement_of_nothing_is_not_found(server):
    with pytest.raises(NotFound):
        await server.api.replace(CONFIG_MAPS, config_map(server))


async def test_status_is_patched_apart_from_the_rest(server):
    ports = [{"name": "grpc", "port": 1, "protocol": "TCP", "targetPort": 1}]
    service = {"metadata": {"name": "svc", "namespace": server.namespace}, "spec": {"ports": ports}}
    await server.api.create(SERVICES, service)
    condition = {
        "type": "Fine",
        "status": "True",
        "reason": "Tested",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    after = await server.api.patch_status(SERVICES, server.namespace, "svc", {"conditions": [condition]})
    assert [found["type"] for found in after["status"]["conditions"]] == ["Fine"]
    after = await server.api.patch_status(SERVICES, server.namespace, "svc", {"conditions": None})
    assert "conditions" not in after["status"]
    assert after["spec"]["ports"][0]["port"] == 1


async def test_a_status_patch_of_nothing_is_not_found(server):
    with pytest.raises(NotFound):
        await server.api.patch_status(SERVICES, server.namespace, "svc", {"conditions": []})


def paused(server: Any) -> dict[str, Any]:
    """Return a Deployment that makes no pods, whatever its replicas."""
    labels = {"app": "paused"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    spec = {"replicas": 1, "paused": True, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": "paused", "namespace": server.namespace}, "spec": spec}


async def test_replicas_are_set_through_the_scale_subresource_and_nothing_else_changes(server):
    made = await server.api.create(DEPLOYMENTS, paused(server))
    scale = await server.api.patch_scale(DEPLOYMENTS, server.namespace, "paused", replicas=3, field_manager="mine")
    assert (scale["kind"], scale["spec"]["replicas"], scale["metadata"]["uid"]) == ("Scale", 3, made["metadata"]["uid"])
    after = await server.api.get(DEPLOYMENTS, server.namespace, "paused")
    assert after["spec"] == {**made["spec"], "replicas": 3}


async def test_a_scale_of_nothing_is_not_found(server):
    with pytest.raises(NotFound):
        await server.api.patch_scale(DEPLOYMENTS, server.namespace, "paused", replicas=1, field_manager="mine")


async def test_a_scale_of_an_object_that_changed_conflicts(server):
    made = await server.api.create(DEPLOYMENTS, paused(server))
    where, old = (DEPLOYMENTS, server.namespace, "paused"), made["metadata"]["resourceVersion"]
    await server.api.patch_scale(*where, replicas=2, field_manager="mine")
    with pytest.raises(Conflict):
        await server.api.patch_scale(*where, replicas=3, field_manager="mine", resource_version=old)
    assert (await server.api.get(*where))["spec"]["replicas"] == 2


async def test_a_deletion_of_nothing_is_no_error(server):
    await server.api.delete(CONFIG_MAPS, server.namespace, "thing")


async def test_a_deletion_meant_for_another_object_conflicts(server):
    await server.api.create(CONFIG_MAPS, config_map(server))
    with pytest.raises(Conflict):
        await server.api.delete(CONFIG_MAPS, server.namespace, "thing", uid="00000000-0000-0000-0000-000000000000")
    assert await server.api.get(CONFIG_MAPS, server.namespace, "thing")


async def test_what_is_deleted_is_gone(server):
    made = await server.api.create(CONFIG_MAPS, config_map(server))
    await server.api.delete(CONFIG_MAPS, server.namespace, "thing", uid=made["metadata"]["uid"], grace_period_s=0)
    assert await server.api.get(CONFIG_MAPS, server.namespace, "thing") is None


async def test_a_watch_tells_what_happened_after_its_version(server):
    await server.api.create(CONFIG_MAPS, config_map(server, "before"))
    version = (await server.api.list(CONFIG_MAPS, server.namespace, label_selector="side=left")).resource_version
    seen: list[WatchEvent] = []

    async def follow() -> None:
        watch = server.api.watch(CONFIG_MAPS, server.namespace, resource_version=version, label_selector="side=left")
        async for event in watch:
            if event.type != "BOOKMARK":
                seen.append(event)
            if event.type == "DELETED":
                return

    async with asyncio.timeout(90):
        watching = asyncio.create_task(follow())
        await server.api.create(CONFIG_MAPS, config_map(server, a="1"))
        await server.api.apply(CONFIG_MAPS, config_map(server, b="2"), field_manager="mine")
        await server.api.delete(CONFIG_MAPS, server.namespace, "thing")
        await watching
    assert [event.type for event in seen] == ["ADDED", "MODIFIED", "DELETED"]
    assert {event.object["metadata"]["name"] for event in seen} == {"thing"}


@pytest.mark.cluster
async def test_an_unknown_field_is_refused_by_name(server):
    """Only the real server has schemas."""
    if server.is_fake():
        return
    with pytest.raises((Invalid, KubeError), match="colour"):
        await server.api.create(CONFIG_MAPS, {**config_map(server), "colour": "red"})


async def test_pages_hold_every_object_once_and_one_version(server):
    for name in ("one", "two", "three"):
        await server.api.create(CONFIG_MAPS, config_map(server, name))
    pages = [page async for page in server.api.pages(CONFIG_MAPS, server.namespace, label_selector="side=left")]
    assert sorted(item["metadata"]["name"] for page in pages for item in page.items) == ["one", "three", "two"]
    assert len({page.resource_version for page in pages}) == 1


async def test_pages_of_nothing_are_one_that_is_empty(server):
    pages = [page async for page in server.api.pages(CONFIG_MAPS, server.namespace, label_selector="side=none")]
    assert [page.items for page in pages] == [()]


async def test_a_status_patch_of_an_old_version_conflicts(server):
    ports = [{"name": "grpc", "port": 1, "protocol": "TCP", "targetPort": 1}]
    service = {"metadata": {"name": "svc", "namespace": server.namespace}, "spec": {"ports": ports}}
    made = await server.api.create(SERVICES, service)
    old = made["metadata"]["resourceVersion"]
    condition = {
        "type": "Fine",
        "status": "True",
        "reason": "Tested",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"conditions": [condition]}
    after = await server.api.patch_status(SERVICES, server.namespace, "svc", status, resource_version=old)
    assert after["metadata"]["resourceVersion"] != old
    with pytest.raises(Conflict):
        await server.api.patch_status(SERVICES, server.namespace, "svc", {"conditions": None}, resource_version=old)


async def test_a_deletion_tells_what_still_ends(server):
    held = config_map(server)
    held["metadata"]["finalizers"] = ["inference.dormouse.dev/test"]
    await server.api.create(CONFIG_MAPS, held)
    ending = await server.api.delete(CONFIG_MAPS, server.namespace, "thing")
    assert ending is not None
    assert "deletionTimestamp" in ending["metadata"]
    freed = {**ending, "metadata": {**ending["metadata"], "finalizers": []}}
    await server.api.replace(CONFIG_MAPS, freed)
    assert await server.api.delete(CONFIG_MAPS, server.namespace, "thing") is None
