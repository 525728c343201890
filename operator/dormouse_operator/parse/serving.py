"""To whom else than our own gateways workers answer, and what that is not combined with. Pure."""

from __future__ import annotations

from dormouse_operator.model import Serving, Subscriber
from dormouse_operator.parse.values import Raw, SpecError

_UNCACHED = ("embed", "classify", "score", "transcribe")


def parse_serving(spec: Raw) -> Serving:
    """Return what is said of it. Raises SpecError; the schema refuses the same."""
    serving = spec.get("serving") or {}
    return Serving(
        bool(serving.get("inferencePool", False)),
        serving.get("failureMode", "FailClose"),
        _subscribers(spec) if "kvEvents" in serving else (),
    )


def _subscribers(spec: Raw) -> tuple[Subscriber, ...]:
    if not (spec.get("engine") or {}).get("enablePrefixCaching", True):
        raise SpecError("spec.serving.kvEvents needs spec.engine.enablePrefixCaching, as it tells of cached prefixes")
    if (task := spec.get("task")) in _UNCACHED:
        raise SpecError(f"spec.serving.kvEvents needs a spec.task that caches prefixes; {task} does not")
    said = spec["serving"]["kvEvents"].get("subscribers")
    if not said or not all(said):
        raise SpecError("spec.serving.kvEvents.subscribers has to name pods by labels, or nobody may connect")
    return tuple(Subscriber(each.get("podLabels") or {}, each.get("namespaceLabels")) for each in said)
