"""spec.adapters and status.adapters → nouns. Pure. Raises only SpecError."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from dormouse_operator.model import Engine
from dormouse_operator.model.adapters import Adapter, RecordedAdapter
from dormouse_operator.parse.values import Raw, SpecError

ADAPTERS_ROOT = "/adapters"  # claims are mounted below it
MOST_ADAPTERS = 1024  # of a deployment
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._/]{0,126}[A-Za-z0-9])?")
_DIGEST = re.compile(r"([0-9a-f]{64})?")
_ALLOWED_URIS = "pvc://CLAIM/PATH and file:///PATH"
_DEFAULT_SLOTS = 1  # as the worker's settings say


def parse_adapters(raw: Sequence[Raw], engine: Engine, served_name: str) -> tuple[Adapter, ...]:
    """Return the adapters of a spec, by name. Raises SpecError."""
    adapters = tuple(sorted((_parse_adapter(each) for each in raw), key=lambda each: each.name))
    if adapters and not engine.enable_lora:
        raise SpecError("spec.adapters is set, and spec.engine.enableLora is not; set spec.engine.enableLora true")
    counts = Counter(each.name for each in adapters)
    if double := next((name for name, count in counts.items() if count > 1), ""):
        raise SpecError(f"spec.adapters names {double!r} more than once; each adapter has a name of its own")
    if served_name in counts:
        raise SpecError(f"spec.adapters[{served_name}] has the name of the base model; choose another")
    slots = engine.max_loras or _DEFAULT_SLOTS
    places = engine.max_cpu_loras or slots
    if len(adapters) > min(places, MOST_ADAPTERS):
        words = f"spec.adapters has {len(adapters)}; the most is spec.engine.maxCpuLoras, {places}"
        raise SpecError(f"{words}, and {MOST_ADAPTERS} at all")
    pinned = sum(each.is_pinned for each in adapters)
    if pinned >= slots and pinned:
        raise SpecError(
            f"spec.adapters pins {pinned}, and spec.engine.maxLoras is {slots}: one slot stays free for the others"
        )
    return adapters


def _parse_adapter(raw: Raw) -> Adapter:
    name, uri, digest = raw.get("name", ""), raw.get("uri", ""), raw.get("digest", "")
    where = f"spec.adapters[{name[:128]}]"
    if not _NAME.fullmatch(name):
        raise SpecError(f"{where}.name is {name[:128]!r}; allowed are 1 to 128 letters, digits and - . _ /")
    if not _DIGEST.fullmatch(digest):
        raise SpecError(f"{where}.digest is {digest[:128]!r}; allowed are 64 hexadecimal digits in lower case")
    claim, path = _parse_uri(uri, f"{where}.uri")
    return Adapter(name=name, uri=uri, path=path, claim=claim, digest=digest, is_pinned=bool(raw.get("pin", False)))


def _parse_uri(uri: str, field: str) -> tuple[str, str]:
    """Return the claim, "" for none, and the directory in the container."""
    if ".." in uri.split("/"):
        raise SpecError(f"{field} is {uri[:512]!r}; the path must not hold ..")
    if "\0" in uri:
        raise SpecError(f"{field} is {uri[:512]!r}; the path must not hold a NUL")
    if uri.startswith("hf://"):
        raise SpecError(f"{field} is {uri[:512]!r}; adapters of a hub are not fetched: put them into a claim (pvc://)")
    if uri.startswith("file:///") and uri != "file:///":
        return "", uri.removeprefix("file://")
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    if not uri.startswith("pvc://") or not claim:
        raise SpecError(f"{field} is {uri[:512]!r}; allowed are {_ALLOWED_URIS}")
    return claim, "/".join(part for part in (ADAPTERS_ROOT, claim, path) if part)


def parse_recorded_adapters(raw: Sequence[Raw]) -> tuple[RecordedAdapter, ...]:
    """Return what the status says."""
    return tuple(
        RecordedAdapter(
            name=each["name"],
            uri=each.get("uri", ""),
            state=each.get("state", ""),
            digest=each.get("digest", ""),
            rank=each.get("rank", 0),
            slot_bytes=each.get("slotBytes", 0),
        )
        for each in raw
    )
