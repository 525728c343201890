"""Turns protobuf Structs into plain values with a fixed order of keys. Pure.

A Struct is a map, and a map has no order on the wire; templates print tools in the order of the keys. So keys that
tool descriptions have in common come in their usual order, all others by the alphabet: the same chat always gives the
same prompt.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import struct_pb2

USUAL_ORDER = (
    *("id", "type", "function", "name", "description", "parameters", "arguments", "properties", "required", "items"),
    *("enum", "default"),
)
_RANK = {name: rank for rank, name in enumerate(USUAL_ORDER)}
_EXACT_INTEGERS = 1 << 53  # every number is a double on the wire; below this a whole one is meant as an integer


def plain_dict(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Return the Struct as a dict, nested values included."""
    names = sorted(struct.fields, key=lambda name: (_RANK.get(name, len(_RANK)), name))
    return {name: plain_value(struct.fields[name]) for name in names}


def plain_value(value: struct_pb2.Value) -> Any:
    """Return a Value as None, bool, int, float, str, list or dict."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return plain_dict(value.struct_value)
    if kind == "list_value":
        return [plain_value(item) for item in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < _EXACT_INTEGERS else number
    return None if kind in {None, "null_value"} else getattr(value, kind)
