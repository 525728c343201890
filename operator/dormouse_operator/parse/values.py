"""Quantities and times of Kubernetes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

Raw = Mapping[str, Any]

_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(rf"(?P<number>[0-9]+(\.[0-9]+)?)(?P<suffix>{'|'.join(_FACTORS)})")


class SpecError(ValueError):
    """The spec says something that no schema of ours would have let pass; the message names field and value."""


def parse_bytes(field: str, value: str | int) -> int:
    """Return the bytes of a quantity such as 1.5Gi. Raises SpecError."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise SpecError(f"{field} is {value!r}; allowed are bytes or a number with k, Ki, M, Mi, G, Gi, T or Ti")
    return int(Decimal(match["number"]) * _FACTORS[match["suffix"]])


def parse_time(text: str | None) -> datetime | None:
    """Return a time of the API server, None for none."""
    return datetime.fromisoformat(text) if text else None


def format_time(time: datetime) -> str:
    """Return a time as the API server writes it, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
