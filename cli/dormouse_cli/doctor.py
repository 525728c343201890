"""`doctor`: observes what `checks` judges, and writes the findings. Changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TypeVar

from dormouse_cli import checks, find
from dormouse_cli.adapter_view import read_all
from dormouse_cli.checks import Finding, Level
from dormouse_cli.cluster import DEPLOYMENTS, NODES, Cluster, explain
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.options import Form
from dormouse_cli.pool_view import read_pool
from dormouse_cli.session import Session
from dormouse_cli.show import offered
from dormouse_cli.versions import own_version
from dormouse_cli.view import read
from dormouse_kube.api import GPU_POOLS, LEASES, Kind, Resource
from dormouse_kube.errors import Forbidden, KubeError, NotFound

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "red"}
_PART_OF = "app.kubernetes.io/part-of=dormouse"
Value = TypeVar("Value")


async def examine(session: Session, *, all_namespaces: bool, form: Form) -> None:
    """Write every finding. Raises CommandFailed (FINDINGS) if one asks for an act."""
    namespace = None if all_namespaces else session.namespace
    findings = await look(session, namespace)
    if form is not Form.TEXT:
        session.screen.structured([asdict(one) | {"level": one.level.value} for one in findings], form)
    else:
        for finding in findings:
            _write(session, finding)
    bad = sum(finding.level is Level.BAD for finding in findings)
    if bad:
        raise CommandFailed(f"{bad} of {len(findings)} checks found a problem", code=ExitCode.FINDINGS)


async def look(session: Session, namespace: str | None) -> list[Finding]:
    """Return all findings: the cluster's, the installation's, the rights', the deployments', the pools'."""
    cluster, here = session.cluster, session.namespace
    findings = [checks.kubernetes(await cluster.server_version())]
    found, trouble = await _tried(find.deployments(cluster, namespace), "InferenceDeployments")
    findings += trouble
    findings += await _installation(cluster)
    for right in checks.RIGHTS:
        if not await cluster.may(right.verb, right.resource, right.group, here):
            findings.append(checks.missing_right(right, here))
    pods, trouble = await _tried(find.worker_pods(cluster, namespace), "worker pods")
    findings += trouble
    views = [(read(raw, pods or ()), raw) for raw in found or ()]
    for view, _ in views:
        findings += checks.deployment(view)
    for some in read_all(found or (), await offered(cluster, namespace)).values():
        findings += checks.adapters(some)
    findings += await _pools(cluster, namespace)
    nodes, trouble = await _tried(_all(cluster, NODES), "nodes")
    return findings + trouble + (list(checks.capacity(views, nodes)) if nodes is not None else [])


async def _pools(cluster: Cluster, namespace: str | None) -> list[Finding]:
    """Return what there is to say of pools: nothing where the cluster does not know the kind, which is optional."""
    with suppress(Forbidden, NotFound):
        listed = await cluster.list(GPU_POOLS, namespace)
        return [finding for raw in listed.items for finding in checks.pool(read_pool(raw))]
    return []


async def _installation(cluster: Cluster) -> list[Finding]:
    findings: list[Finding] = []
    parts, trouble = await _tried(_all(cluster, DEPLOYMENTS, _PART_OF), "the installation's Deployments")
    findings += trouble
    if parts is None:
        return findings
    for name in ("operator", "gateway"):
        findings += checks.part(name, parts, own_version())
    homes = {one["metadata"]["namespace"] for one in parts}
    leases, trouble = await _tried(_all(cluster, LEASES), "leases")
    own = [lease for lease in leases or () if lease["metadata"]["namespace"] in homes]
    return findings + trouble + list(checks.leader(own, datetime.now(UTC)))


async def _all(cluster: Cluster, kind: Kind, selector: str = "") -> Sequence[Resource]:
    return (await cluster.list(kind, None, label_selector=selector)).items


async def _tried(asked: Awaitable[Value], what: str) -> tuple[Value | None, list[Finding]]:
    """Return what was asked for; where that may not be seen or is not there, None and a finding that says so."""
    try:
        return await asked, []
    except Forbidden as error:
        hint = "run doctor with more rights, or have this right granted"
        return None, [Finding(Level.WARN, "rights", f"{what} cannot be checked: {error}", hint)]
    except KubeError as error:
        known = explain(error)
        if known.code is ExitCode.NO_CLUSTER:
            raise
        return None, [Finding(Level.BAD, what, str(known), "helm install, as README.md shows")]
    except CommandFailed as error:
        return None, [Finding(Level.BAD, what, str(error), "see --namespace")]


def _write(session: Session, finding: Finding) -> None:
    words = f"{finding.level.value:8} {finding.about}: {finding.words}"
    session.screen.say(words, word=finding.level.value, colour=_COLOURS[finding.level])
    if finding.remedy:
        session.screen.say(f"{'':8} what to do: {finding.remedy}")
