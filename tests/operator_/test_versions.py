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
def test_versions_differ_in_nothing_but_their_names_and_the_older_is_stored(plural):
    versions = definition(plural)["spec"]["versions"]
    assert [(one["name"], one["served"], one["storage"]) for one in versions] == [(OLD, True, True), (NEW, True, False)]
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
async def test_a_version_may_go_once_everything_is_stored_in_the_other(served):
    client, kind = served
    name = f"{kind.plural}.{group_of(kind)}"
    old, new = of_version(kind, OLD), of_version(kind, NEW)
    before = {each: await client.create(old, manifest(old, each)) for each in ("a", "b", "c")}
    await change(client, name, lambda versions: [{**one, "storage": one["name"] == NEW} for one in versions])
    async with asyncio.timeout(60):
        while not await is_stored_anew(client, old, before["a"]):  # noqa: ASYNC110  # the server hears of it later
            await asyncio.sleep(0.2)
    with pytest.raises(Invalid, match="storedVersions"):
        await change(client, name, lambda versions: [one for one in versions if one["name"] == NEW])
    assert await migrate_kind(client, old) == f"{kind.plural}: 3 are stored as {NEW} now"
    assert await migrate_kind(client, old) == f"{kind.plural}: all are stored as {NEW}"
    again = {
        one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in (await client.list(old, None)).items
    }
    assert all(again[each] != was["metadata"]["resourceVersion"] for each, was in before.items()), "stored anew"
    await change(client, name, lambda versions: [one for one in versions if one["name"] == NEW])
    found = (await client.list(new, "default")).items
    assert [(one["metadata"]["name"], one["spec"]) for one in found] == [(n, b["spec"]) for n, b in before.items()]


async def change(client: KubeClient, name: str, versions: Any) -> None:
    """Change a definition's versions; the server writes its status beside us."""
    while True:
        crd = await client.get(DEFINITIONS, "", name)
        assert crd
        changed = {**crd["spec"], "versions": versions(crd["spec"]["versions"])}
        with suppress(Conflict):
            await client.replace(DEFINITIONS, {**crd, "spec": changed})
            return


async def is_stored_anew(client: KubeClient, kind: Kind, written: Any) -> bool:
    """Write an object as it is; return whether the server stored it: it does so where the version is another."""
    again = await client.replace(kind, written)
    return bool(again["metadata"]["resourceVersion"] != written["metadata"]["resourceVersion"])
