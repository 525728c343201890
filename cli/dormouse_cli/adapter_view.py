"""What people ask of adapters: of deployments' statuses and of InferenceAdapters, as values and lines of text. Pure.

Every field may be missing: an operator that is older or newer than this command line writes another status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dormouse_cli.lines import Line, size
from dormouse_cli.view import Raw

_UNSEEN = "Unseen"  # the operator has not told of it yet
_BAD = frozenset({"Failed", "Refused", _UNSEEN})
_OWN_WORD = frozenset({"Refused", _UNSEEN})
_KINDS = {"LoRA": "", "ActivatedLoRA": "activated", "SoftPrompt": "soft prompt"}  # what nearly all are goes unsaid
_DIGEST_CHARS = 12


@dataclass(frozen=True, slots=True)
class AdapterView:
    """One adapter of a deployment."""

    namespace: str
    deployment: str
    name: str
    uri: str
    state: str
    message: str  # why it is no further; "" = it is where it should be
    digest: str  # "" = it was never loaded, as the four below
    kind: str  # LoRA, ActivatedLoRA or SoftPrompt
    rank: int
    virtual_tokens: int  # of a soft prompt
    slot_bytes: int
    loaded: int  # replicas that serve it
    replicas: int  # that serve the base
    is_pinned: bool
    resource: str  # the InferenceAdapter that asks for it; "" = the deployment's spec does


Key = tuple[str, str]  # namespace and name of a deployment


def read_all(deployments: Iterable[Raw], offers: Iterable[Raw]) -> dict[Key, list[AdapterView]]:
    """Return the adapters of each deployment, and of bases that InferenceAdapters name and that are not there."""
    found = {(raw["metadata"]["namespace"], raw["metadata"]["name"]): read_adapters(raw) for raw in deployments}
    for raw in offers:
        view = _read_offer(raw)
        if view.state in _OWN_WORD:  # what else there is to say, its base says
            found.setdefault((view.namespace, view.deployment), []).append(view)
    return found


def read_adapters(raw: Raw) -> list[AdapterView]:
    """Return the adapters of an InferenceDeployment, by name: those of its spec, with what the status says of them."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    told = {str(each.get("name") or ""): each for each in status.get("adapters") or ()}
    wanted = {str(each.get("name") or ""): each for each in spec.get("adapters") or ()}
    whose = metadata["namespace"], metadata["name"]
    return [_read(*whose, name, wanted.get(name) or {}, told.get(name) or {}) for name in sorted({*wanted, *told})]


def _read_offer(raw: Raw) -> AdapterView:
    """Return an InferenceAdapter as its own status tells of it."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    name = str(spec.get("name") or metadata["name"])
    told = {**status, "resource": metadata["name"], "message": _why(status)} if status else {}
    view = _read(metadata["namespace"], str(spec.get("base") or ""), name, spec, told)
    return replace(view, resource=metadata["name"])


def _why(status: Raw) -> str:
    return next(
        (str(one.get("message") or "") for one in status.get("conditions") or () if one["type"] == "Resolved"), ""
    )


def _read(namespace: str, deployment: str, name: str, wanted: Raw, told: Raw) -> AdapterView:
    return AdapterView(
        namespace=namespace,
        deployment=deployment,
        name=name,
        uri=str(wanted.get("uri") or told.get("uri") or ""),
        state=str(told.get("state") or _UNSEEN),
        message=str(told.get("message") or "") if told else "the operator has not looked yet",
        digest=str(told.get("digest") or ""),
        kind=str(told.get("kind") or ""),
        rank=int(told.get("rank") or 0),
        virtual_tokens=int(told.get("virtualTokens") or 0),
        slot_bytes=int(told.get("slotBytes") or 0),
        loaded=int(told.get("loadedReplicas") or 0),
        replicas=int(told.get("replicas") or 0),
        is_pinned=bool(wanted.get("pin")),
        resource=str(told.get("resource") or ""),
    )


def adapter_lines(namespace: str, deployment: str, views: list[AdapterView]) -> Iterator[Line]:
    """Yield the deployment and a line for each of its adapters, and why one is not there."""
    yield Line(0, f"{namespace}/{deployment}  {len(views)} {'adapter' if len(views) == 1 else 'adapters'}")
    for view in views:
        yield Line(1, _words(view), word=view.state)
        if view.message:
            yield Line(2, view.message, style="yellow" if view.state in _BAD else "")


def _words(view: AdapterView) -> str:
    parts = [
        f"{view.name}  {view.state}",
        f"{view.loaded}/{view.replicas} loaded",
        _KINDS.get(view.kind, view.kind),
        f"rank {view.rank}" if view.rank else "",
        f"{view.virtual_tokens} virtual tokens" if view.virtual_tokens else "",
        f"{size(view.slot_bytes)} a slot" if view.slot_bytes else "",
        "pinned" if view.is_pinned else "",
        f"sha256 {view.digest[:_DIGEST_CHARS]}" if view.digest else "",
        view.uri,
        f"by InferenceAdapter {view.resource}" if view.resource else "",
    ]
    return ", ".join(part for part in parts if part)
