"""Keeps contracts compatible: what was noted once is there still, in messages with its number, everywhere of its type.

    python -m tools.wire           notes in tools/wire.txt what was added; refuses to drop what is there
    python -m tools.wire --check   fails where the contract broke

Operator, gateways and workers of two releases meet at every upgrade, in any pairing, and so do they and resources.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dormouse_api.v1 import gateway_control_pb2, inference_pb2, kv_blocks_pb2, relay_pb2, worker_control_pb2
from tools.bootstrap import ROOT
from tools.pages.resource import all_fields

NOTED = ROOT / "tools" / "wire.txt"
FILES = (gateway_control_pb2, inference_pb2, kv_blocks_pb2, relay_pb2, worker_control_pb2)


def contract() -> list[str]:
    """Return a line for each method, field and value of messages and resources, sorted."""
    wire = (line for file in FILES for line in _lines(file.DESCRIPTOR))
    resources = (line for path in ROOT.glob("crds/*.yaml") for line in _of_resource(path.stem))
    return sorted((*wire, *resources))


def dropped(noted: Iterable[str], now: Iterable[str]) -> list[str]:
    """Return what was noted and is not so any more: a thing that is gone, or has another number or type."""
    return sorted(set(noted) - set(now))


def _lines(file: Any) -> Iterator[str]:
    for service in file.services_by_name.values():
        for method in service.methods:
            taken = f"{'stream ' if method.client_streaming else ''}{method.input_type.full_name}"
            answered = f"{'stream ' if method.server_streaming else ''}{method.output_type.full_name}"
            yield f"rpc {method.full_name} ({taken}) returns ({answered})"
    for message in file.message_types_by_name.values():
        yield from _of_message(message)
    for enum in file.enum_types_by_name.values():
        yield from _of_enum(enum)


def _of_message(message: Any) -> Iterator[str]:
    for field in message.fields:
        kind = field.message_type or field.enum_type
        type_name = kind.full_name if kind else f"type {field.type}"
        many = "repeated " if field.is_repeated else ""
        yield f"field {message.full_name}.{field.name} = {field.number} {many}{type_name}"
    for nested in message.nested_types:
        yield from _of_message(nested)
    for enum in message.enum_types:
        yield from _of_enum(enum)


def _of_enum(enum: Any) -> Iterator[str]:
    for value in enum.values:
        yield f"value {enum.full_name}.{value.name} = {value.number}"


def _of_resource(plural: str) -> Iterator[str]:
    """Yield the fields of spec and status, and the values that a field may have."""
    for field in all_fields(plural):
        yield f"resource {plural} {field.path}: {field.kind}"
        for value in field.schema.get("enum", ()):
            yield f"resource {plural} {field.path} = {value!r}"


def keep(path: Path, now: Sequence[str], *, is_check: bool) -> str:
    """Note what is new, unless only checking; return what is wrong, "" for nothing. Nothing is written then."""
    noted = path.read_text("utf-8").splitlines()
    if broken := dropped(noted, now):
        return "the contract drops what other releases rely on; add instead:\n" + "\n".join(broken)
    if not is_check:
        path.write_text("\n".join(now) + "\n", "utf-8")
    return ""


def main() -> None:
    """Note, or check."""
    if complaint := keep(NOTED, contract(), is_check="--check" in sys.argv[1:]):
        sys.exit(complaint)


if __name__ == "__main__":
    main()
