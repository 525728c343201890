"""`status`: reads deployments and pods, writes the tree, or the same as JSON or YAML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from dormouse_cli import find
from dormouse_cli.lines import tree
from dormouse_cli.options import Form
from dormouse_cli.session import Session
from dormouse_cli.view import DeploymentView, read
from dormouse_kube.api import Resource


async def status(session: Session, *, name: str | None, all_namespaces: bool, form: Form) -> None:
    """Show one deployment, those of the namespace, or all."""
    namespace = None if all_namespaces else session.namespace
    views = await look(session, name=name, namespace=namespace)
    if form is not Form.TEXT:
        session.screen.structured([asdict(view) for view in views], form)
        return
    if not views:
        where = "in any namespace" if namespace is None else f"in the namespace {namespace}"
        session.screen.remark(f"there is no InferenceDeployment {where}")
    for view in views:
        session.screen.tree(tree(view, datetime.now(UTC)))


async def look(session: Session, *, name: str | None, namespace: str | None) -> list[DeploymentView]:
    """Return the views of what is asked for, with their pods."""
    found: Sequence[Resource]
    if name is not None and namespace is not None:
        found = [await find.deployment(session.cluster, namespace, name)]
    else:
        found = await find.deployments(session.cluster, namespace)
        if name is not None:
            found = find.named(found, name)
    pods = await find.worker_pods(session.cluster, namespace, name or "") if found else ()
    return [read(raw, pods) for raw in found]
