"""`report`: a namespace and its installation in one file, for somebody else to look at. Secrets are never read."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dormouse_cli import doctor
from dormouse_cli.checks import component
from dormouse_cli.cluster import DEPLOYMENTS, Cluster, LogQuery
from dormouse_cli.errors import CommandFailed
from dormouse_cli.redact import Redactor
from dormouse_cli.session import Session
from dormouse_cli.versions import own_version
from dormouse_kube.api import (
    EVENTS,
    GPU_POOLS,
    INFERENCE_ADAPTERS,
    INFERENCE_DEPLOYMENTS,
    PODS,
    SERVICES,
    Kind,
    Resource,
)
from dormouse_kube.errors import KubeError

_KINDS = (INFERENCE_DEPLOYMENTS, GPU_POOLS, INFERENCE_ADAPTERS, PODS, SERVICES, EVENTS, DEPLOYMENTS)


async def write(session: Session, file: Path, *, tail_lines: int) -> None:
    """Gather and write. What cannot be read is named in the file instead."""
    findings = await doctor.look(session, session.namespace)
    homes = await _homes(session.cluster)
    objects = {home: await _objects(session.cluster, home) for home in sorted({session.namespace, *homes})}
    logs = await _logs(session.cluster, objects, tail_lines)
    about = {
        "version": own_version(),
        "server": await session.cluster.server_version(),
        "time": datetime.now(UTC).isoformat(),
    }
    files = clean(about, [asdict(one) for one in findings], objects, logs)
    _pack(file, files)
    session.screen.say(f"{file} holds {len(files)} files; look at it before you send it")


def clean(
    about: Mapping[str, str],
    findings: Sequence[Mapping[str, Any]],
    objects: Mapping[str, Mapping[str, Any]],
    logs: Mapping[str, str],
) -> dict[str, str]:
    """Return the report's files, path → text, without secrets: objects first, so that text is freed of theirs. Pure."""
    redactor = Redactor()
    kept = {
        f"{namespace}/{plural}.json": redactor.object(found)
        for namespace, kinds in objects.items()
        for plural, found in kinds.items()
    }
    kept |= {"about.json": dict(about), "doctor.json": list(findings)}
    texts = {path: _json(redactor.strings(value)) for path, value in kept.items()}
    return texts | {path: redactor.text(text) for path, text in logs.items()}


async def _homes(cluster: Cluster) -> set[str]:
    """Return the namespaces where Dormouse is installed, as far as they may be seen."""
    try:
        found = (await cluster.list(DEPLOYMENTS, None, label_selector="app.kubernetes.io/part-of=dormouse")).items
    except KubeError:
        return set()
    return {one["metadata"]["namespace"] for one in found}


async def _objects(cluster: Cluster, namespace: str) -> dict[str, Any]:
    return {kind.plural: await _listed(cluster, kind, namespace) for kind in _KINDS}


async def _listed(cluster: Cluster, kind: Kind, namespace: str) -> Any:
    """Return the objects of a kind, or why they could not be read."""
    try:
        return list((await cluster.list(kind, namespace)).items)
    except KubeError as error:
        return {"not read": str(error)}


async def _logs(cluster: Cluster, objects: Mapping[str, Mapping[str, Any]], tail_lines: int) -> dict[str, str]:
    """Return the logs of our own pods, path → text, those before a restart too."""
    logs: dict[str, str] = {}
    for namespace, kinds in objects.items():
        found = kinds[PODS.plural]
        for pod in (one for one in found if isinstance(one, Mapping) and component(one)):
            for container, restarts in _containers(pod):
                path = f"{namespace}/logs/{pod['metadata']['name']}.{container}"
                query = LogQuery(container, tail_lines=tail_lines)
                logs[f"{path}.log"] = await _log(cluster, pod, query)
                if restarts:
                    before = LogQuery(container, tail_lines=tail_lines, previous=True)
                    logs[f"{path}.previous.log"] = await _log(cluster, pod, before)
    return logs


def _containers(pod: Resource) -> list[tuple[str, int]]:
    """Return the names of the pod's containers and how often each restarted."""
    status = pod.get("status") or {}
    restarts = {one["name"]: int(one.get("restartCount") or 0) for one in status.get("containerStatuses") or ()}
    return [(one["name"], restarts.get(one["name"], 0)) for one in (pod.get("spec") or {}).get("containers") or ()]


async def _log(cluster: Cluster, pod: Resource, query: LogQuery) -> str:
    metadata = pod["metadata"]
    try:
        lines = [line async for line in cluster.logs(metadata["namespace"], metadata["name"], query)]
    except KubeError as error:
        return f"not read: {error}\n"
    return "".join(f"{line}\n" for line in lines)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"


def _pack(file: Path, files: Mapping[str, str]) -> None:
    """Write the archive, readable by its owner only. Raises CommandFailed."""
    try:
        with file.open("wb") as target, tarfile.open(fileobj=target, mode="w:gz") as archive:
            file.chmod(0o600)
            for path, text in sorted(files.items()):
                data = text.encode()
                entry = tarfile.TarInfo(f"dormouse-report/{path}")
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error}") from error
