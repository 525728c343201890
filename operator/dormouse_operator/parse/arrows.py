"""The chart's rules for workers, one JSON text → `Arrows`. Pure. Raises only SpecError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dormouse_operator.model import Arrows
from dormouse_operator.model.arrows import Rules
from dormouse_operator.parse.values import SpecError

_PARTS = {"workers": ("ingress", "egress"), "ranks": ("ports", "egress")}


def parse_arrows(text: str) -> Arrows | None:
    """Return the rules, None for no text: then deployments have no policy. Raises SpecError."""
    if not text:
        return None
    try:
        given = json.loads(text)
    except ValueError as error:
        raise SpecError(f"it is no JSON: {error}") from error
    _check_names("it", given, _PARTS)
    for part, lists in _PARTS.items():
        _check_names(part, given[part], lists)
    workers, ranks = given["workers"], given["ranks"]
    return Arrows(
        ingress=_rules("workers.ingress", workers["ingress"]),
        egress=_rules("workers.egress", workers["egress"]),
        rank_ports=_rules("ranks.ports", ranks["ports"]),
        rank_egress=_rules("ranks.egress", ranks["egress"]),
    )


def _check_names(what: str, value: object, names: Mapping[str, Any] | tuple[str, ...]) -> None:
    if not isinstance(value, dict) or set(value) != set(names):
        raise SpecError(f"{what} is to be an object of {' and '.join(names)}")


def _rules(name: str, value: object) -> Rules:
    if not isinstance(value, list) or not all(isinstance(rule, dict) for rule in value):
        raise SpecError(f"{name} is to be a list of objects")
    key = name.rpartition(".")[2]
    return tuple(as_stored({key: value}).get(key, ()))


def as_stored(value: Any) -> Any:
    """Return a part of a NetworkPolicy as the API server stores it: without what is empty, with the default protocol.

    An empty object means something (an empty selector selects all), but not as matchLabels. What is compared with a
    stored one has to be like it, or it would be written again for ever.
    """
    if isinstance(value, list):
        return [as_stored(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in value.items() if not _is_left_out(key, item)}
    return {key: as_stored(_with_protocols(item) if key == "ports" else item) for key, item in kept.items()}


def _is_left_out(key: str, value: object) -> bool:
    return value is None or value == [] or (key == "matchLabels" and value == {})


def _with_protocols(ports: Any) -> Any:
    """Return ports that say TCP where they say nothing; what is no port is the API server's to refuse."""
    if not isinstance(ports, list) or not all(isinstance(port, dict) for port in ports):
        return ports
    return [{**port, "protocol": port.get("protocol") or "TCP"} for port in ports]
