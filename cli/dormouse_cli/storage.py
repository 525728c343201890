"""`migrate-storage`: every object of our kinds stored in the version in which the API server stores them now.

A version of a definition may go only when nothing is stored in it. The server keeps a list of the versions in which it
ever stored something (`status.storedVersions`), and nobody but us takes one off it.
"""

from __future__ import annotations

from dormouse_cli.errors import CommandFailed
from dormouse_cli.session import Session
from dormouse_kube.api import (
    GPU_POOLS,
    INFERENCE_ADAPTERS,
    INFERENCE_DEPLOYMENTS,
    INFERENCE_KEYS,
    Kind,
    KubeApi,
    Resource,
)
from dormouse_kube.errors import Conflict, NotFound

DEFINITIONS = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
KINDS = (INFERENCE_DEPLOYMENTS, INFERENCE_ADAPTERS, INFERENCE_KEYS, GPU_POOLS)


async def migrate(session: Session) -> None:
    """Migrate each kind that is defined, and tell. Safe to run again. Raises CommandFailed, KubeError."""
    for kind in KINDS:
        session.screen.say(await migrate_kind(session.cluster, kind))


async def migrate_kind(kube: KubeApi, kind: Kind) -> str:
    """Write all objects of a kind anew, take the other versions off the list; return what was done."""
    name = f"{kind.plural}.{kind.api_version.partition('/')[0]}"
    definition = await kube.get(DEFINITIONS, "", name)
    if definition is None:
        return f"{kind.plural}: not defined here"
    [stored] = [version["name"] for version in definition["spec"]["versions"] if version["storage"]]
    if definition["status"]["storedVersions"] == [stored]:
        return f"{kind.plural}: all are stored as {stored}"
    found = await kube.list(kind, None)
    for item in found.items:
        await _write_anew(kube, kind, item)
    # of the definition that was read: whoever changed meanwhile where is stored has to be followed anew
    version = definition["metadata"]["resourceVersion"]
    try:
        await kube.patch_status(DEFINITIONS, "", name, {"storedVersions": [stored]}, resource_version=version)
    except Conflict as error:
        raise CommandFailed(f"{name} was changed meanwhile; run this again") from error
    return f"{kind.plural}: {len(found.items)} are stored as {stored} now"


async def _write_anew(kube: KubeApi, kind: Kind, item: Resource) -> None:
    """Write an object as it was read; where somebody else wrote it since, or deleted it, that did the same."""
    try:
        await kube.replace(kind, item)
    except (Conflict, NotFound):
        return
