"""Turns protobuf Structs into plain values with a fixed order of keys. Pure.

A Struct is a map, and a map has no order on the wire; templates print tools in the order of the keys. So who knows the
order tells it beside the Structs (`key_order`). Else keys that tool descriptions have in common come in their usual
order, all others by the alphabet: the same chat always gives the same prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from google.protobuf import struct_pb2

USUAL_ORDER = (
    *("id", "type", "function", "name", "description", "parameters", "arguments", "properties", "required", "items"),
    *("enum", "default"),
)
_RANK = {name: rank for rank, name in enumerate(USUAL_ORDER)}
_EXACT_INTEGERS = 1 << 53  # every number is a double on the wire; below this a whole one is meant as an integer


_Order = Callable[[struct_pb2.Struct], Sequence[str]]


class KeyOrderError(ValueError):
    """The names that tell the order of members are not those of the members."""


def in_order(structs: Iterable[struct_pb2.Struct], key_order: Sequence[str]) -> list[dict[str, Any]]:
    """Return Structs as dicts whose members come as `Chat.key_order` says, in the usual order if it is empty.

    Raises KeyOrderError.
    """
    if not key_order:
        return [plain_dict(struct) for struct in structs]
    names = iter(key_order)

    def as_told(struct: struct_pb2.Struct) -> Sequence[str]:
        told = list(islice(names, len(struct.fields)))
        if set(told) != set(struct.fields):
            raise KeyOrderError(f"{told[:4]} for the members {sorted(struct.fields)[:4]}")
        return told

    made = [_dict(struct, as_told) for struct in structs]
    if (more := next(names, None)) is not None:
        raise KeyOrderError(f"{more[:64]!r} behind the names of all members")
    return made


def plain_dict(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Return the Struct as a dict in the usual order, nested values included."""
    return _dict(struct, _usual)


def _usual(struct: struct_pb2.Struct) -> Sequence[str]:
    return sorted(struct.fields, key=lambda name: (_RANK.get(name, len(_RANK)), name))


def _dict(struct: struct_pb2.Struct, order: _Order) -> dict[str, Any]:
    return {name: _value(struct.fields[name], order) for name in order(struct)}


def _value(value: struct_pb2.Value, order: _Order) -> Any:
    """Return a Value as None, bool, int, float, str, list or dict."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _dict(value.struct_value, order)
    if kind == "list_value":
        return [_value(item, order) for item in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < _EXACT_INTEGERS else number
    return None if kind in {None, "null_value"} else getattr(value, kind)
