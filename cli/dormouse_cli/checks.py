"""What `doctor` finds: pure functions from what was observed to findings, each with what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from dormouse_cli.adapter_view import AdapterView
from dormouse_cli.pool_view import PoolView
from dormouse_cli.versions import difference
from dormouse_cli.view import DeploymentView

Raw = Mapping[str, Any]
OLDEST_KUBERNETES = (1, 29)  # Chart.yaml's kubeVersion
_MANY_RESTARTS = 3
_ADAPTER_REMEDY = "mend its files, which are tried again every 30 s, or remove it"
_NOBODY_LOOKED = "no operator has looked at it"
_WATCHED = "check that an operator runs and watches this namespace (watch.namespaces of the chart)"


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warning"
    BAD = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str
    words: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Right:
    """A right that a command needs."""

    verb: str
    resource: str
    group: str
    commands: str  # which commands need it

    def __str__(self) -> str:
        """Name it as RBAC does."""
        return f"{self.verb} {self.resource}" + (f" in {self.group}" if self.group else "")


_OURS = "inference.dormouse.dev"
RIGHTS = (
    Right("list", "inferencedeployments", _OURS, "all"),
    Right("get", "inferencedeployments", _OURS, "all but status"),
    Right("watch", "inferencedeployments", _OURS, "apply --wait, sleep, wake, restart, rollback"),
    Right("patch", "inferencedeployments", _OURS, "apply, sleep, wake, restart"),
    Right("update", "inferencedeployments", _OURS, "rollback"),
    Right("list", "gpupools", _OURS, "pool, doctor, report"),
    Right("get", "gpupools", _OURS, "pool NAME, status of members"),
    Right("list", "inferenceadapters", _OURS, "adapters, doctor, report"),
    Right("create", "inferencekeys", _OURS, "keys create"),
    Right("list", "pods", "", "status, top, logs, doctor, report"),
    Right("get", "pods/log", "", "logs, report"),
    Right("get", "pods/proxy", "", "top, usage without --prometheus"),
    Right("get", "pods/portforward", "", "generate, chat, bench and batch without --address"),
    Right("create", "pods/portforward", "", "generate, chat, bench and batch without --address"),
)


def kubernetes(version: str) -> Finding:
    """Judge the API server's version."""
    parts = version.removeprefix("v").split(".")
    known = tuple(int(part) for part in parts[:2]) if len(parts) > 1 and all(p.isdigit() for p in parts[:2]) else None
    if known is not None and known < OLDEST_KUBERNETES:
        least = ".".join(str(number) for number in OLDEST_KUBERNETES)
        return Finding(Level.BAD, "Kubernetes", f"the API server is {version}", f"use Kubernetes {least} or newer")
    return Finding(Level.OK, "Kubernetes", f"the API server is {version}")


def part(name: str, found: Iterable[Raw], own_version: str) -> Iterator[Finding]:
    """Judge operator or gateway: is it there, does it run, is its version ours?"""
    deployments = [one for one in found if component(one) == name]
    if not deployments:
        yield Finding(Level.BAD, name, f"no {name} is installed", "helm install, as README.md shows")
    for raw in deployments:
        metadata, status = raw["metadata"], raw.get("status") or {}
        place = f"{metadata['namespace']}/{metadata['name']}"
        wanted, ready = int((raw.get("spec") or {}).get("replicas", 1)), int(status.get("readyReplicas") or 0)
        words = f"{place}: {ready} of {wanted} pods are ready"
        level = Level.OK if ready >= wanted > 0 else Level.WARN if ready else Level.BAD
        remedy = (
            "" if level is Level.OK else f"kubectl describe deployment -n {metadata['namespace']} {metadata['name']}"
        )
        yield Finding(level, name, words, remedy)
        theirs = str((metadata.get("labels") or {}).get("app.kubernetes.io/version") or "")
        if other := difference(own_version, theirs):
            hint = "use the command line of the installed version, or upgrade the release"
            yield Finding(Level.WARN, name, f"{place}: {other}", hint)


def component(raw: Raw) -> str:
    """Return which part of Dormouse an object is, "" if none."""
    labels = raw["metadata"].get("labels") or {}
    is_ours = labels.get("app.kubernetes.io/part-of") == "dormouse"
    return str(labels.get("app.kubernetes.io/component") or "") if is_ours else ""


def leader(leases: Iterable[Raw], now: datetime) -> Iterator[Finding]:
    """Judge the leases that elect an operator."""
    for raw in leases:
        metadata, spec = raw["metadata"], raw.get("spec") or {}
        if not metadata["name"].endswith("-operator") or "renewTime" not in spec:
            continue
        place = f"{metadata['namespace']}/{metadata['name']}"
        age = now - datetime.fromisoformat(spec["renewTime"])
        if age > timedelta(seconds=2 * int(spec.get("leaseDurationSeconds") or 15)):
            words = f"nobody leads: {place} was renewed {age.total_seconds():.0f} s ago"
            yield Finding(Level.BAD, "leader", words, "see the operator's log; its pods may not run")
        else:
            yield Finding(Level.OK, "leader", f"{spec.get('holderIdentity') or 'somebody'} leads ({place})")


def missing_right(right: Right, namespace: str) -> Finding:
    """Say that the user lacks a right."""
    remedy = f"have it granted in {namespace}; needed by: {right.commands}"
    return Finding(Level.WARN, "rights", f"you may not {right}", remedy)


def deployment(view: DeploymentView) -> Iterator[Finding]:
    """Judge one deployment."""
    findings = list(_deployment(view))
    if not findings:
        findings = [Finding(Level.OK, view.full_name, f"{view.phase}, {view.ready} of {view.replicas} replicas serve")]
    yield from findings


def _deployment(view: DeploymentView) -> Iterator[Finding]:
    about = view.full_name
    if not view.conditions:
        yield Finding(Level.BAD, about, _NOBODY_LOOKED, _WATCHED)
        return
    if not view.is_current:
        yield Finding(
            Level.WARN, about, "the status is older than the spec", "wait; if it lasts, see the operator's log"
        )
    degraded, problem = view.condition("Degraded"), view.problem
    if degraded and degraded.status == "True":
        words = f"{degraded.reason}: {degraded.message}"
        yield Finding(Level.BAD, about, words, degraded.remedy or "see the first condition that is not True")
    elif problem:
        words = f"{problem.type} is {problem.status}: {problem.reason}: {problem.message}"
        yield Finding(Level.WARN, about, words, problem.remedy)
    for pod in view.pods:
        if pod.restarts > _MANY_RESTARTS:
            remedy = f"kubectl logs --previous -n {view.namespace} {pod.pod}"
            yield Finding(Level.WARN, about, f"{pod.pod} has restarted {pod.restarts} times", remedy)


def adapters(views: Sequence[AdapterView]) -> Iterator[Finding]:
    """Judge the adapters of a deployment: of those that are where they should be nothing is said."""
    for view in views:
        about = f"{view.namespace}/{view.deployment}"
        if view.state == "Failed":
            yield Finding(Level.WARN, about, f"the adapter {view.name}: {view.message}", _ADAPTER_REMEDY)
        elif view.state == "Refused":
            words = f"InferenceAdapter {view.resource} is not served: {view.message}"
            yield Finding(Level.WARN, about, words, "do what the message says, or delete it")


def pool(view: PoolView) -> Iterator[Finding]:
    """Judge one pool."""
    if not view.conditions:
        yield Finding(Level.BAD, view.full_name, _NOBODY_LOOKED, _WATCHED)
    elif not view.problems:
        words = f"{view.held} of {view.num_slots} slots are held, {len(view.waiting)} members wait"
        yield Finding(Level.OK, view.full_name, words)
    for one in view.problems:
        yield Finding(Level.BAD, view.full_name, f"{one.type} is {one.status}: {one.reason}: {one.message}", one.remedy)


def capacity(views: Iterable[tuple[DeploymentView, Raw]], nodes: Iterable[Raw]) -> Iterator[Finding]:
    """Say which deployments ask for a device that no node has."""
    offered = {name for node in nodes for name, amount in _allocatable(node).items() if str(amount) != "0"}
    for view, raw in views:
        spec = raw.get("spec") or {}
        is_cpu = (spec.get("engine") or {}).get("device") == "cpu"
        gpu = spec.get("gpu") or {}
        wanted = str(gpu.get("resourceName") or "nvidia.com/gpu")
        has_no_need = (
            is_cpu or gpu.get("claims") or gpu.get("pool") or view.replicas == 0
        )  # the scheduler tells of claims
        if wanted not in offered and not has_no_need:
            remedy = "add a node with it, install its device plugin, or set spec.engine.device to cpu"
            yield Finding(Level.BAD, view.full_name, f"no node offers {wanted}", remedy)


def _allocatable(node: Raw) -> Mapping[str, Any]:
    return (node.get("status") or {}).get("allocatable") or {}
