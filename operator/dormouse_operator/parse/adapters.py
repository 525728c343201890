"""spec.adapters, status.adapters and InferenceAdapters → nouns. Pure. Raises only SpecError."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dormouse_api.hub_uri import SCHEME, parse_hub_uri
from dormouse_operator.model import Engine
from dormouse_operator.model.adapters import Adapter, OfferedAdapter, RecordedAdapter
from dormouse_operator.model.wanted import MOST_ADAPTERS
from dormouse_operator.parse.uris import parse_uri
from dormouse_operator.parse.values import Raw, SpecError

ADAPTERS_ROOT = "/adapters"  # claims are mounted below it
TOKENS_ROOT = "/adapter-tokens"  # and Secrets with tokens of a hub below this: the worker's --lora-tokens
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._/]{0,126}[A-Za-z0-9])?")
_DIGEST = re.compile(r"([0-9a-f]{64})?")


def parse_adapters(raw: Sequence[Raw], engine: Engine, served_name: str, *, is_grouped: bool) -> tuple[Adapter, ...]:
    """Return the adapters of a spec, by name. Raises SpecError."""
    adapters = tuple(sorted(map(_parse_listed, raw), key=lambda each: each.name))
    if is_grouped and (fetched := next((each for each in adapters if each.is_fetched), None)):
        raise SpecError(
            f"spec.adapters[{fetched.name}].uri is {fetched.uri!r}, which is not fetched for groups of several pods;"
            " put it into a claim (pvc://), or set spec.parallelism.pipeline 1"
        )
    if adapters and not engine.enable_lora:
        raise SpecError("spec.adapters is set, and spec.engine.enableLora is not; set spec.engine.enableLora true")
    counts = Counter(each.name for each in adapters)
    if double := next((name for name, count in counts.items() if count > 1), ""):
        raise SpecError(f"spec.adapters names {double!r} more than once; each adapter has a name of its own")
    if served_name in counts:
        raise SpecError(f"spec.adapters[{served_name}] has the name of the base model; choose another")
    slots, places = engine.adapter_slots, engine.adapter_places
    if len(adapters) > places:
        words = f"spec.adapters has {len(adapters)}; the most is spec.engine.maxCpuLoras, {places}"
        raise SpecError(f"{words}, and {MOST_ADAPTERS} at all")
    pinned = sum(each.is_pinned for each in adapters)
    if pinned >= slots and pinned:
        raise SpecError(
            f"spec.adapters pins {pinned}, and spec.engine.maxLoras is {slots}: one slot stays free for the others"
        )
    return adapters


def parse_names(raw: Sequence[str]) -> tuple[str, ...]:
    """Return the claims that InferenceAdapters may lie in, or the Secrets that they may name, each once."""
    return tuple(sorted(set(raw)))


def parse_offer(raw: Raw) -> OfferedAdapter:
    """Return an InferenceAdapter; one that cannot be read says why. Raises nothing."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    wanted, fault = None, ""
    try:
        wanted = replace(_parse_adapter({"name": metadata["name"], **spec}, "spec"), resource=metadata["name"])
    except SpecError as error:
        fault = str(error)
    return OfferedAdapter(
        resource=metadata["name"],
        uid=metadata["uid"],
        created=metadata.get("creationTimestamp", ""),
        generation=metadata.get("generation", 1),
        resource_version=metadata["resourceVersion"],
        wanted=wanted,
        fault=fault,
        raw=raw.get("status") or {},
    )


def _parse_listed(raw: Raw) -> Adapter:
    return _parse_adapter(raw, f"spec.adapters[{raw.get('name', '')[:128]}]")


def _parse_adapter(raw: Raw, where: str) -> Adapter:
    name, uri, digest = raw.get("name", ""), raw.get("uri", ""), raw.get("digest", "")
    if not _NAME.fullmatch(name):
        raise SpecError(f"{where}.name is {name[:128]!r}; allowed are 1 to 128 letters, digits and - . _ /")
    if not _DIGEST.fullmatch(digest):
        raise SpecError(f"{where}.digest is {digest[:128]!r}; allowed are 64 hexadecimal digits in lower case")
    claim, path = _parse_place(uri, f"{where}.uri")
    return Adapter(
        name=name,
        uri=uri,
        path=path,
        claim=claim,
        digest=digest,
        is_pinned=bool(raw.get("pin", False)),
        token=_parse_token(raw.get("tokenSecretRef"), uri, where),
    )


def _parse_token(reference: Raw | None, uri: str, where: str) -> str:
    if not reference:
        return ""
    if not uri.startswith(SCHEME):
        raise SpecError(f"{where}.tokenSecretRef is for hf:// only; remove it, or set {where}.uri to hf://ORG/NAME")
    return f"{reference['name']}/{reference.get('key', 'token')}"


def _parse_place(uri: str, field: str) -> tuple[str, str]:
    """Return the claim, "" for none, and the directory in the container, or the URI again where it is fetched."""
    if not uri.startswith(SCHEME):
        return parse_uri(uri, field, root=ADAPTERS_ROOT, plural="adapters")
    if parse_hub_uri(uri) is None:
        raise SpecError(f"{field} is {uri[:512]!r}; allowed are hf://ORG/NAME and hf://ORG/NAME@REVISION")
    return "", uri


def parse_recorded_adapters(raw: Sequence[Raw]) -> tuple[RecordedAdapter, ...]:
    """Return what the status says."""
    return tuple(
        RecordedAdapter(
            name=each["name"],
            uri=each.get("uri", ""),
            state=each.get("state", ""),
            digest=each.get("digest", ""),
            kind=each.get("kind", ""),
            rank=each.get("rank", 0),
            virtual_tokens=each.get("virtualTokens", 0),
            slot_bytes=each.get("slotBytes", 0),
            message=each.get("message", ""),
            loaded_replicas=each.get("loadedReplicas", 0),
            replicas=each.get("replicas", 0),
            since=each.get("since", ""),
            resource=each.get("resource", ""),
        )
        for each in raw
    )
