"""Grammars of a call's arguments: one JSON object, or property by property as some families write them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dormouse_worker.common.grammar import GrammarRefused
from dormouse_worker.front.text.closed_objects import closed
from dormouse_worker.front.text.endless import is_endless

Tools = Sequence[tuple[str, Mapping[str, Any]]]  # name and schema of the parameters
Schema = Mapping[str, Any]

OPTIONS = "x-guidance"  # in a schema: how llguidance reads it, up to leaving out what it cannot keep
# between the parts of JSON: a blank, or a new line with its indentation; a model that likes blanks goes on behind them
BLANKS = r"\x20|\x0D?\x0A[\x20\x09]{0,20}"
_DEFINITIONS = ("$defs", "definitions")
_OF_AN_OBJECT = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "title",
    "description",
    "$schema",
    *_DEFINITIONS,
}
_SAY_NOTHING = {"type", "title", "description", "default", "examples", "deprecated"}
_OF_A_BARE_STRING = {*_SAY_NOTHING, "enum", "const", "minLength", "maxLength"}
_KEY = re.compile(r"[\w.-]+")


def written(text: str, special: Mapping[str, int]) -> str:
    """Return a text as grammars write it, what of it is a special token by its id."""
    names = sorted((name for name in special if name), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return " ".join(f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts if part) or '""'


def spaced(schema: Any) -> Any:
    """Return the schema of a JSON text as rules have it, whose blanks are bounded."""
    schema = {} if schema is True else schema
    return {**schema, OPTIONS: {"whitespace_pattern": BLANKS}} if isinstance(schema, dict) else schema


def arguments(tools: Tools, rule: str) -> Iterator[str]:
    """Yield a rule for the arguments of each tool, as one JSON object."""
    for index, (name, schema) in enumerate(tools):
        yield f"{rule}_{index}: %json {json.dumps(spaced(_parameters(name, schema)))}"


def in_pairs(form: Mapping[str, Any], special: Mapping[str, int]) -> Callable[[Tools, str], Iterator[str]]:
    """Return what makes rules for arguments that are written one by one; `form` is a `Pairs` as a mapping."""

    def make(tools: Tools, rule: str) -> Iterator[str]:
        for index, (name, schema) in enumerate(tools):
            yield from _pairs(f"{rule}_{index}", {**form, "special": special}, _parameters(name, schema), name)

    return make


def _parameters(name: str, schema: Schema) -> dict[str, Any]:
    """Return the schema of a tool's arguments: of an object, and of no other members than it says, see `closed`."""
    if schema.get("type", "object") != "object":
        raise GrammarRefused(f"the parameters of {name[:64]!r} are of type {schema['type']!r}; object is needed")
    if OPTIONS in schema:
        raise GrammarRefused(f"{OPTIONS} in the parameters of {name[:64]!r}: a schema cannot choose how it is read")
    whole = {**schema, "type": "object"}
    if is_endless(whole):
        raise GrammarRefused(f"the parameters of {name[:64]!r} need themselves, which no text satisfies")
    return dict(closed(whole))


def _pairs(rule: str, form: Mapping[str, Any], schema: Schema, tool: str) -> Iterator[str]:
    """Yield rules for properties in the schema's order, each once at most.

    RULE_first_N is what may come from the N-th on if none came before, RULE_more_N if one did.
    """
    _check_object(schema, tool)
    properties, required = dict(schema.get("properties") or {}), set(schema.get("required") or ())
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
    separator = json.dumps(form["separator"]) if form["separator"] else ""
    yield f"{rule}: {rule}_first_0"
    for number, (key, value) in enumerate(properties.items()):
        skipping_first = "" if key in required else f" | {rule}_first_{number + 1}"
        skipping_more = "" if key in required else f" | {rule}_more_{number + 1}"
        yield f"{rule}_first_{number}: {rule}_pair_{number} {rule}_more_{number + 1}{skipping_first}"
        yield f"{rule}_more_{number}: {separator} {rule}_pair_{number} {rule}_more_{number + 1}{skipping_more}"
        yield from _pair(f"{rule}_pair_{number}", form, _checked_key(key, tool), _with(shared, value, tool))
    yield f'{rule}_first_{len(properties)}: ""'
    yield f'{rule}_more_{len(properties)}: ""'


def _pair(rule: str, form: Mapping[str, Any], key: str, schema: Any) -> Iterator[str]:
    begin, after = (
        written(f"{form['before']}{key}{form['between']}", form["special"]),
        written(form["after"], form["special"]),
    )
    if form["bare_strings"] and isinstance(schema, dict) and schema.get("type") == "string":
        yield f"{rule}: {begin} {rule}_text"
        yield from _bare_string(f"{rule}_text", schema, form, key)
    elif (
        not form["bare_strings"]
        and isinstance(schema, dict)
        and schema.keys() <= _SAY_NOTHING.union(_DEFINITIONS)
        and schema.get("type") == "boolean"
    ):
        yield f'{rule}: {begin} ("True" | "False") {after}'
    else:
        line_break = '"\\n"?' if form["bare_strings"] else ""  # as it may stand before a bare string's end
        yield f"{rule}: {begin} {rule}_json {line_break} {after}"
        yield f"{rule}_json: %json {json.dumps(spaced(schema))}"


def _bare_string(rule: str, schema: Schema, form: Mapping[str, Any], key: str) -> Iterator[str]:
    if more := sorted(schema.keys() - _OF_A_BARE_STRING - set(_DEFINITIONS)):
        raise GrammarRefused(f"{more[0]} of {key[:64]!r}: the model writes strings as they are, and nothing binds them")
    after, ending = form["after"], written(form["after"], form["special"])
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if options is not None:
        texts = [text for text in options if isinstance(text, str) and after.strip() not in text]
        if len(texts) != len(options) or not texts:
            raise GrammarRefused(f"the options of {key[:64]!r}: texts without {after.strip()} are needed")
        yield f"{rule}: ({' | '.join(json.dumps(text) for text in texts)}) {ending}"
        return
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength", "")
    text = f"/(?s:.{{{least},{most}}})/"
    if ending.startswith("<["):  # a token, which no text has in it
        yield f"{rule}: {rule}_value {ending}"
        yield f"{rule}_value: {text}"
    else:
        yield f"{rule}[suffix={ending}]: {text}"


def _check_object(schema: Schema, tool: str) -> None:
    """Refuse what no list of properties says."""
    if more := sorted(schema.keys() - _OF_AN_OBJECT):
        raise GrammarRefused(f"{more[0]} in the parameters of {tool[:64]!r}: the model writes properties one by one")
    if schema.get("additionalProperties") is not False:
        raise GrammarRefused(f"additionalProperties in the parameters of {tool[:64]!r}: false is needed")
    if unknown := sorted(set(schema.get("required") or ()) - set(schema.get("properties") or {})):
        raise GrammarRefused(f"the parameters of {tool[:64]!r} require {unknown[0][:64]!r}, which is no property")


def _checked_key(key: str, tool: str) -> str:
    if not _KEY.fullmatch(key):
        raise GrammarRefused(f"the property {key[:64]!r} of {tool[:64]!r} has characters that calls cannot have")
    return key


def _with(shared: Mapping[str, Any], schema: Any, tool: str) -> Any:
    """Return a property's schema with the definitions of the whole. Raises GrammarRefused if it refers elsewhere."""
    for path in _references(schema):
        if not path.startswith(tuple(f"#/{key}/" for key in shared)):
            raise GrammarRefused(
                f"$ref {path[:64]!r} in the parameters of {tool[:64]!r}: definitions only are known there"
            )
    return {**schema, **shared} if isinstance(schema, dict) and shared else schema


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    elif isinstance(schema, dict):
        for key, part in schema.items():
            if key == "$ref" and isinstance(part, str):
                yield part
            yield from _references(part)
