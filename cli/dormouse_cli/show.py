"""`status`, `pool`, `adapters`: read deployments with their pods, or pools; write trees, or the same for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime

from dormouse_cli import find
from dormouse_cli.adapter_view import adapter_lines, read_all
from dormouse_cli.cluster import Cluster
from dormouse_cli.lines import tree
from dormouse_cli.options import Form
from dormouse_cli.pool_lines import pool_tree, summary
from dormouse_cli.pool_view import PoolView, read_pool, told_of
from dormouse_cli.session import Session
from dormouse_cli.view import NOTHING_TOLD, DeploymentView, PoolTold, pool_of, read
from dormouse_kube.api import GPU_POOLS, INFERENCE_ADAPTERS, INFERENCE_DEPLOYMENTS, Resource
from dormouse_kube.errors import Forbidden, NotFound


async def status(session: Session, *, name: str | None, all_namespaces: bool, form: Form) -> None:
    """Show one deployment, those of the namespace, or all."""
    namespace = None if all_namespaces else session.namespace
    views = await look(session, name=name, namespace=namespace)
    if form is not Form.TEXT:
        session.screen.structured([asdict(view) for view in views], form)
        return
    if not views:
        session.screen.remark(f"there is no InferenceDeployment {_where(namespace)}")
    for view in views:
        session.screen.tree(tree(view, datetime.now(UTC)))


async def look(session: Session, *, name: str | None, namespace: str | None) -> list[DeploymentView]:
    """Return the views of what is asked for, with their pods."""
    found = await find.matching(session.cluster, INFERENCE_DEPLOYMENTS, namespace, name)
    pods = await find.worker_pods(session.cluster, namespace, name or "") if found else ()
    known = await _pools_of(session, found)
    return [read(raw, pods, _told(raw, known)) for raw in found]


async def _pools_of(session: Session, members: Sequence[Resource]) -> Mapping[tuple[str, str], PoolView]:
    """Return the pools that the deployments name; of one that is not there, or may not be seen, nothing is told."""
    named = {(raw["metadata"]["namespace"], name) for raw in members if (name := pool_of(raw))}
    found: dict[tuple[str, str], PoolView] = {}
    for namespace, name in sorted(named):
        with suppress(Forbidden, NotFound):
            if raw := await session.cluster.get(GPU_POOLS, namespace, name):
                found[namespace, name] = read_pool(raw)
    return found


def _told(raw: Resource, known: Mapping[tuple[str, str], PoolView]) -> PoolTold:
    pool = known.get((raw["metadata"]["namespace"], pool_of(raw)))
    return told_of(pool, raw["metadata"]["name"]) if pool else NOTHING_TOLD


async def pools(session: Session, *, name: str | None, all_namespaces: bool, form: Form) -> None:
    """Show one pool as a tree, or a line for each of the namespace or of all."""
    namespace = None if all_namespaces else session.namespace
    views = [read_pool(raw) for raw in await find.matching(session.cluster, GPU_POOLS, namespace, name)]
    if form is not Form.TEXT:
        session.screen.structured([asdict(view) for view in views], form)
        return
    if not views:
        session.screen.remark(f"there is no GpuPool {_where(namespace)}")
    for view in views:
        session.screen.tree(summary(view) if name is None else pool_tree(view, datetime.now(UTC)))


async def adapters(session: Session, *, name: str | None, all_namespaces: bool, form: Form) -> None:
    """Show the adapters of one deployment, or of those of the namespace or of all that have some."""
    namespace = None if all_namespaces else session.namespace
    found = await find.matching(session.cluster, INFERENCE_DEPLOYMENTS, namespace, name)
    offers = [raw for raw in await offered(session.cluster, namespace) if name in {None, raw["spec"]["base"]}]
    views = read_all(found, offers)
    if form is not Form.TEXT:
        session.screen.structured([asdict(view) for some in views.values() for view in some], form)
        return
    having = {key: some for key, some in views.items() if some}
    if not having:
        session.screen.remark(f"there is no adapter {f'of {name} ' if name else ''}{_where(namespace)}")
    for key, some in having.items():
        session.screen.tree(adapter_lines(*key, some))


async def offered(cluster: Cluster, namespace: str | None) -> Sequence[Resource]:
    """Return the InferenceAdapters; none where the cluster does not know the kind, or they may not be seen."""
    with suppress(Forbidden, NotFound):
        return (await cluster.list(INFERENCE_ADAPTERS, namespace)).items
    return ()


def _where(namespace: str | None) -> str:
    return "in any namespace" if namespace is None else f"in the namespace {namespace}"
