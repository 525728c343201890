"""Finding what the user names, and saying what he may have meant where it is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from contextlib import suppress

from dormouse_api.names import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_cli.cluster import NAMESPACES, Cluster
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, Kind, Resource
from dormouse_kube.errors import KubeError

_MOST_SHOWN = 3


async def deployments(cluster: Cluster, namespace: str | None) -> Sequence[Resource]:
    """Return all deployments of a namespace, or of all (None). Raises CommandFailed if the namespace is not there."""
    return await all_of(cluster, INFERENCE_DEPLOYMENTS, namespace)


async def deployment(cluster: Cluster, namespace: str, name: str) -> Resource:
    """Return one deployment. Raises CommandFailed naming what is near."""
    return await one_of(cluster, INFERENCE_DEPLOYMENTS, namespace, name)


async def all_of(cluster: Cluster, kind: Kind, namespace: str | None) -> Sequence[Resource]:
    """Return all objects of one of our kinds. Raises CommandFailed if the namespace is not there."""
    listed = await cluster.list(kind, namespace)
    if namespace is not None and not listed.items:
        await check_namespace(cluster, namespace)
    return listed.items


async def one_of(cluster: Cluster, kind: Kind, namespace: str, name: str) -> Resource:
    """Return one object of one of our kinds. Raises CommandFailed naming what is near."""
    found = await cluster.get(kind, namespace, name)
    if found is not None:
        return found
    siblings = names_of(await all_of(cluster, kind, namespace))
    raise CommandFailed(
        f"there is no {kind.kind} {name} in the namespace {namespace}"
        f"{near(name, siblings) or await _elsewhere(cluster, kind, name)}",
        code=ExitCode.NOT_FOUND,
    )


def named(found: Sequence[Resource], kind: Kind, name: str) -> Sequence[Resource]:
    """Return those of this name, in whatever namespace. Raises CommandFailed naming what is near."""
    same = [one for one in found if one["metadata"]["name"] == name]
    if not same:
        message = f"there is no {kind.kind} {name} in any namespace{near(name, names_of(found))}"
        raise CommandFailed(message, code=ExitCode.NOT_FOUND)
    return same


async def matching(cluster: Cluster, kind: Kind, namespace: str | None, name: str | None) -> Sequence[Resource]:
    """Return the one of this name, or all (None), of a namespace or of all (None)."""
    if name is not None and namespace is not None:
        return [await one_of(cluster, kind, namespace, name)]
    found = await all_of(cluster, kind, namespace)
    return found if name is None else named(found, kind, name)


async def worker_pods(cluster: Cluster, namespace: str | None, name: str = "") -> Sequence[Resource]:
    """Return the worker pods of one deployment, or of all."""
    which = f"{LABEL_DEPLOYMENT}={name}" if name else LABEL_DEPLOYMENT
    selector = f"{which},{LABEL_COMPONENT}={COMPONENT_WORKER}"
    return (await cluster.list(PODS, namespace, label_selector=selector)).items


async def check_namespace(cluster: Cluster, namespace: str) -> None:
    """Raise CommandFailed if the namespace does not exist; who may not look is not told so."""
    try:
        if await cluster.get(NAMESPACES, "", namespace) is not None:
            return
    except KubeError:
        return
    known: Iterable[str] = ()
    with suppress(KubeError):
        known = names_of((await cluster.list(NAMESPACES, None)).items)
    message = f"there is no namespace {namespace}{near(namespace, known)}"
    raise CommandFailed(message, code=ExitCode.NOT_FOUND)


def names_of(found: Iterable[Resource]) -> list[str]:
    """Return the objects' names."""
    return [one["metadata"]["name"] for one in found]


def near(name: str, known: Iterable[str]) -> str:
    """Return a question with the names that are alike, "" if none is."""
    alike = difflib.get_close_matches(name, sorted(known), n=_MOST_SHOWN, cutoff=0.6)
    return f"; did you mean {' or '.join(alike)}?" if alike else ""


async def _elsewhere(cluster: Cluster, kind: Kind, name: str) -> str:
    """Return where one of this name is, "" if nowhere, or nowhere that the user may look."""
    found: Sequence[Resource] = ()
    with suppress(KubeError):
        found = (await cluster.list(kind, None)).items
    places = [one["metadata"]["namespace"] for one in found if one["metadata"]["name"] == name]
    shown = " and ".join(sorted(places)[:_MOST_SHOWN])
    return f"; there is one in {shown} (--namespace)" if places else ""
