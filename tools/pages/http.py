"""docs/reference/http.md: every parameter of every door for text: done, taken without effect, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dormouse_gateway.openai.doors import DOORS, Door
from tools.pages.tables import code, escaped, page, table

_WITHOUT_EFFECT = "Without effect: "
Row = tuple[str, str, str]


def text() -> str:
    """Return the page."""
    parts = [f"## {door.path}\n\n{table(('Parameter', 'Is', 'What'), _shown(door))}" for door in DOORS]
    return page("Parameters over HTTP", _INTRODUCTION, *parts)


def rows(door: Door) -> Iterator[Row]:
    """Yield name, what is done with it, and why or how, of every parameter that has a name of its own."""
    for name, schema in sorted(door.schema["properties"].items()):
        yield name, *_taken(schema)
    for name, why in sorted(door.refused.items()):
        yield name, "refused", f"{why[0].upper()}{why[1:]}."


def _shown(door: Door) -> Iterator[Row]:
    for name, is_, what in rows(door):
        yield code(name), is_, escaped(what)


def _taken(schema: Mapping[str, Any]) -> tuple[str, str]:
    what = schema.get("description", "")
    if what.startswith(_WITHOUT_EFFECT):
        why = what.removeprefix(_WITHOUT_EFFECT)
        return "without effect", f"{why[0].upper()}{why[1:]}"
    values = _choices(schema)
    return ("done" if values is None else f"only {values}"), what


def _choices(schema: Mapping[str, Any]) -> str | None:
    """Return the values that are allowed, None where they are not a few."""
    meant = schema["anyOf"][0] if "anyOf" in schema else schema
    return ", ".join(code(json.dumps(value)) for value in meant["enum"]) if "enum" in meant else None


_INTRODUCTION = """The parameters of each endpoint of [the HTTP API](../how-to/http.md). *Done*: it has its effect.
*Only*: these values are accepted, all others are refused by name. *Without effect*: it is accepted because it changes
no answer. *Refused*: an error 400 that names it. A parameter that is not listed is refused too; none is ignored
silently. `null` means the same as leaving an optional parameter out."""
