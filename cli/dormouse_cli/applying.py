"""`apply` and `rollback`: manifests in, server-side apply out, and the former spec kept in an annotation.

The annotation (`orders.ANNOTATION_PREVIOUS`) holds one spec, without what the server filled in by itself being told
apart; it is left out where it would be larger than the server takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dormouse_api.names import API_VERSION, API_VERSIONS, GROUP, KIND
from dormouse_cli import find
from dormouse_cli.errors import CommandFailed
from dormouse_cli.follow import settled
from dormouse_cli.giving import follow
from dormouse_cli.orders import ANNOTATION_PREVIOUS
from dormouse_cli.session import Session
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, Resource

FIELD_MANAGER = "dormouse"
_CREATED = "created"
_MAX_PREVIOUS_BYTES = 64 << 10  # of the 256 KiB that all annotations may have together


def read(filename: str) -> str:
    """Return the file's text, that of the standard input for "-". Raises CommandFailed."""
    if filename == "-":
        return sys.stdin.read()
    try:
        return Path(filename).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{filename} cannot be read: {error}") from error


def parse(text: str, *, namespace: str) -> Sequence[Resource]:
    """Return the manifests, each with its namespace. Raises CommandFailed naming the document and the field."""
    import yaml

    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise CommandFailed(f"this is no YAML: {error}") from error
    if not documents:
        raise CommandFailed("there is no document in it; one InferenceDeployment is needed")
    return [_checked(document, number, namespace) for number, document in enumerate(documents, 1)]


def _checked(document: Any, number: int, namespace: str) -> Resource:
    if not isinstance(document, Mapping) or not isinstance(document.get("metadata"), Mapping):
        raise CommandFailed(f"document {number} is no Kubernetes object with apiVersion, kind and metadata")
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind != KIND or not str(version).startswith(f"{GROUP}/"):
        raise CommandFailed(f"document {number} is a {kind} of {version}; apply takes {KIND} of {GROUP} only")
    if version not in API_VERSIONS:
        words = f"this command line speaks {' and '.join(API_VERSIONS)}"
        raise CommandFailed(f"document {number} has apiVersion {version}; {words}")
    if not document["metadata"].get("name"):
        raise CommandFailed(f"document {number} has no metadata.name")
    return {**document, "apiVersion": API_VERSION, "metadata": {"namespace": namespace, **document["metadata"]}}


async def apply(session: Session, manifests: Sequence[Resource], *, timeout_s: float | None) -> None:
    """Apply each, then, with a time limit, wait for one after the other to be as its spec says."""
    verdicts = [await _apply(session, manifest) for manifest in manifests]
    for manifest, verdict in zip(manifests, verdicts, strict=True):
        metadata = manifest["metadata"]
        there = Session(session.cluster, metadata["namespace"], session.screen)
        view = await follow(there, metadata["name"], settled, timeout_s, is_new=verdict == _CREATED)
        if view:
            session.screen.say(f"{view.full_name} is {view.phase}")


async def _apply(session: Session, manifest: Resource) -> str:
    """Apply one; return and tell what became of it."""
    metadata = manifest["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    before = await session.cluster.get(INFERENCE_DEPLOYMENTS, namespace, name)
    if before is None:
        await find.check_namespace(session.cluster, namespace)
    after = await session.cluster.apply(INFERENCE_DEPLOYMENTS, manifest, field_manager=FIELD_MANAGER)
    verdict = _CREATED
    if before is not None:
        verdict = "changed" if before.get("spec") != after.get("spec") else "unchanged"
        if verdict == "changed":
            await _keep(session, namespace, name, before["spec"])
    session.screen.say(f"{namespace}/{name} {verdict}")
    return verdict


async def rollback(session: Session, name: str, *, timeout_s: float | None) -> None:
    """Put the kept spec in the place of the present one, and keep that. Raises CommandFailed if none is kept."""
    raw = await find.deployment(session.cluster, session.namespace, name)
    former = previous(raw)
    annotations = {**raw["metadata"]["annotations"], **_annotation(raw["spec"])["annotations"]}
    kept = {key: value for key, value in annotations.items() if value is not None}
    # replaced, not merged: in a merge patch a null would bring the default in its place
    whole = {**raw, "spec": former, "metadata": {**raw["metadata"], "annotations": kept}}
    await session.cluster.replace(INFERENCE_DEPLOYMENTS, whole)
    changed = ", ".join(differing(raw["spec"], former))
    session.screen.say(f"{session.namespace}/{name} has its former spec again, which differs in: {changed}")
    view = await follow(session, name, settled, timeout_s)
    if view:
        session.screen.say(f"{view.full_name} is {view.phase}")


def previous(raw: Resource) -> Mapping[str, Any]:
    """Return the spec that is kept. Raises CommandFailed if there is none, or it is the present one."""
    kept = (raw["metadata"].get("annotations") or {}).get(ANNOTATION_PREVIOUS)
    name = raw["metadata"]["name"]
    if not kept:
        raise CommandFailed(f"no former spec of {name} is kept: only `dormouse apply` keeps one when it changes a spec")
    try:
        spec = json.loads(kept)
    except ValueError as error:
        raise CommandFailed(f"the annotation {ANNOTATION_PREVIOUS} of {name} is damaged: {error}") from error
    if spec == raw["spec"]:
        raise CommandFailed(f"{name} has its former spec already")
    return dict(spec)


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, a missing one being another than null."""
    missing = object()
    return sorted(key for key in {*before, *after} if before.get(key, missing) != after.get(key, missing))


async def _keep(session: Session, namespace: str, name: str, spec: Mapping[str, Any]) -> None:
    """Keep the spec for a rollback."""
    await session.cluster.patch(INFERENCE_DEPLOYMENTS, namespace, name, {"metadata": _annotation(spec)})


def _annotation(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotation that keeps a spec, None in it (which removes it) where the spec is too large."""
    text = json.dumps(spec, separators=(",", ":"), sort_keys=True)
    return {"annotations": {ANNOTATION_PREVIOUS: text if len(text.encode()) <= _MAX_PREVIOUS_BYTES else None}}
