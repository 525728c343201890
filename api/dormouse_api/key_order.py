"""The order of members, told beside Structs, which keep none: what clients write into `key_order`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def key_order(values: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the members of JSON values, object by object, each object before what is in it."""
    for value in values:
        if isinstance(value, dict):
            yield from value
            yield from key_order(value.values())
        elif isinstance(value, list):
            yield from key_order(value)
