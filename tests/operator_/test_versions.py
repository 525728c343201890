"""The versions of the resources: the same but for their names, at a real API server, too, until one is no more."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import suppress
from typing import Any

import pytest

from dormouse_api.names import API_VERSIONS
from dormouse_cli.storage import DEFINITIONS, migrate_kind
from dormouse_kube.api import Kind
from dormouse_kube.client import KubeClient
from dormouse_kube.errors import Conflict, Invalid
from tests.operator_.crds import definition, served_kind

RESOURCES = ("inferencedeployments", "inferenceadapters", "inferencekeys", "gpupools")
OLD, NEW = (version.rpartition("/")[2] for version in API_VERSIONS)
SPEC = {
    "model": {"uri": "pvc://models/tiny", "name": "small"},
    "replicas": 2,
    "engine": {"device": "cpu", "maxNumSeqs": 8, "kvCacheMemory": "64Mi"},
    "lifecycle": {"level1AfterSeconds": None, "zeroAfterSeconds": 600},
    "template": {"spec": {"nodeSelector": {"disk": "fast"}}},
}


@pytest.mark.parametrize("plural", RESOURCES)
def test_versions_differ_in_nothing_but_their_names_and_the_newer_is_stored(plural):
    versions = definition(plural)["spec"]["versions"]
    assert [(one["name"], one["served"], one["storage"]) for one in versions] == [(OLD, True, False), (NEW, True, True)]
    first, second = ({**one, "name": "", "storage": None} for one in versions)
    assert first == second
    assert "conversion" not in definition(plural)["spec"], "nobody is asked to convert"


@pytest.fixture
async def served(cluster):
    """A client, and a kind that is served in both versions."""
    async with served_kind(cluster, definition("inferencedeployments")) as (client, kind):
        yield client, kind


def of_version(kind: Kind, version: str) -> Kind:
    return dataclasses.replace(kind, api_version=f"{group_of(kind)}/{version}")


def group_of(kind: Kind) -> str:
    return kind.api_version.partition("/")[0]


def manifest(kind: Kind, name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": SPEC}


def said(found: Any) -> dict[str, Any]:
    """Return an object without what names the version in which it was asked for."""
    metadata = {name: value for name, value in found["metadata"].items() if name != "managedFields"}
    return {**found, "apiVersion": "", "metadata": metadata}


@pytest.mark.cluster
async def test_what_is_written_in_one_version_is_read_in_the_other_whole(served):
    client, kind = served
    old, new = of_version(kind, OLD), of_version(kind, NEW)
    for name, written, read in (("a", old, new), ("b", new, old)):
        created = await client.create(written, manifest(written, name))
        await client.patch_status(read, "default", name, {"phase": "Active", "replicas": 2})
        first, second = [await client.get(each, "default", name) for each in (written, read)]
        assert second["apiVersion"] == read.api_version
        assert second["spec"] == created["spec"]
        assert second["spec"]["template"] == SPEC["template"], "what no schema knows is kept, too"
        assert second["status"]["phase"] == "Active"
        assert said(first) == said(second)
    await client.patch_scale(new, "default", "a", replicas=3, field_manager="somebody")
    await client.apply(
        old,
        {"metadata": {"namespace": "default", "name": "a"}, "status": {"phase": "Zero"}},
        field_manager="operator",
        subresource="status",
    )
    found = await client.get(new, "default", "a")
    assert (found["spec"]["replicas"], found["status"]["phase"]) == (3, "Zero")


@pytest.mark.cluster
async def test_an_upgrade_and_a_rollback_keep_what_is_stored_and_then_the_old_version_may_go(cluster):
    """From the definition of before, which stores the older version, as `helm upgrade` and `helm rollback` write it."""
    crd = definition("inferencedeployments")
    crd["spec"]["versions"] = stored_in(OLD, crd["spec"]["versions"])
    async with served_kind(cluster, crd) as (client, kind):
        name = f"{kind.plural}.{group_of(kind)}"
        old, new = of_version(kind, OLD), of_version(kind, NEW)
        before = {each: await client.create(old, manifest(old, each)) for each in ("a", "b", "c")}
        wanted = {each: was["spec"] for each, was in before.items()}
        for version in (NEW, OLD, NEW):
            await change(client, name, lambda versions, version=version: stored_in(version, versions))
            await until_stored_anew(client, old, "a")
            assert await specs(client, old) == await specs(client, new) == wanted
        with pytest.raises(Invalid, match="storedVersions"):
            await change(client, name, only_new)
        assert await migrate_kind(client, old) == f"{kind.plural}: 3 are stored as {NEW} now"
        assert await migrate_kind(client, old) == f"{kind.plural}: all are stored as {NEW}"
        again = {one["metadata"]["name"]: one["metadata"] for one in (await client.list(old, None)).items}
        assert all(again[each]["resourceVersion"] != was["metadata"]["resourceVersion"] for each, was in before.items())
        await change(client, name, only_new)
        assert await specs(client, new) == wanted


def stored_in(version: str, versions: Any) -> list[dict[str, Any]]:
    """Return a definition's versions, of which this one is stored."""
    return [{**one, "storage": one["name"] == version} for one in versions]


def only_new(versions: Any) -> list[dict[str, Any]]:
    return [one for one in versions if one["name"] == NEW]


async def specs(client: KubeClient, kind: Kind) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"] for one in (await client.list(kind, "default")).items}


async def change(client: KubeClient, name: str, versions: Any) -> None:
    """Change a definition's versions; the server writes its status beside us."""
    while True:
        crd = await client.get(DEFINITIONS, "", name)
        assert crd
        changed = {**crd["spec"], "versions": versions(crd["spec"]["versions"])}
        with suppress(Conflict):
            await client.replace(DEFINITIONS, {**crd, "spec": changed})
            return


async def until_stored_anew(client: KubeClient, kind: Kind, name: str) -> None:
    """Write an object as it is until the server stores it: where the version is another, of which it hears later."""
    async with asyncio.timeout(60):
        while True:
            was = await client.get(kind, "default", name)
            assert was
            again = await client.replace(kind, was)
            if again["metadata"]["resourceVersion"] != was["metadata"]["resourceVersion"]:
                return
            await asyncio.sleep(0.2)
