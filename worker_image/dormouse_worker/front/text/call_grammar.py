"""Grammars of calls: arguments that fit a tool's schema, alone, in a list, or in the tags of a family. Pure.

What binds calls is a mapping, for it goes to another process: `form` (arguments, list, tags), `tools` as pairs of name
and schema, `is_single` where no text comes between, and for tags what stands around them: `trigger` with its
`trigger_id`, `before`, `between`, `after`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dormouse_api.limits import MAX_STRUCTURED_OUTPUTS_BYTES
from dormouse_worker.common.grammar import GrammarRefused

Tools = Sequence[tuple[str, Mapping[str, Any]]]  # name and schema of the parameters

OPTIONS = "x-guidance"  # in a schema: how llguidance reads it, up to leaving out what it cannot keep
MAX_FORCED_CALLS = 32  # where nothing else may come: a weak model would never end


def calls_grammar(calls: Mapping[str, Any]) -> str:
    """Return the grammar in Lark's syntax. Raises GrammarRefused naming the tool that it cannot have."""
    if calls["form"] == "tags":
        return "\n".join([*_free_text(calls), *tagged_calls(calls)])
    if calls["form"] == "arguments":
        return "\n".join(["start: arguments_0", *_arguments(calls["tools"])])
    more = "" if calls["is_single"] else f' (", " call){{0,{MAX_FORCED_CALLS - 1}}}'
    each = _calls(calls["tools"], '{"name": ', ', "parameters": ', "}")
    return "\n".join([f'start: "[" call{more} "]"', *each])


def tagged_calls(calls: Mapping[str, Any]) -> list[str]:
    """Return the rules of a call as it follows its trigger; `call` is the first. Raises as `calls_grammar` does."""
    return _calls(calls["tools"], calls["before"], calls["between"], calls["after"])


def marker(text: str, token_id: int | None) -> str:
    """Return a text as grammars write it, or the special token that it is."""
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"


def closed(schema: Any) -> Any:
    """Return the schema with additionalProperties false wherever an object's properties stand without it."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(part) for name, part in schema.items()}
    is_open = "additionalProperties" not in schema and "patternProperties" not in schema
    if is_open and ("properties" in schema or schema.get("type") == "object"):
        made["additionalProperties"] = False
    return made


def _free_text(calls: Mapping[str, Any]) -> list[str]:
    """Return the rules of text in which nothing but a call follows the trigger."""
    trigger = marker(calls["trigger"], calls["trigger_id"])
    if calls["trigger_id"] is not None:
        return [f"start: (TEXT? {trigger} call)* TEXT?", "TEXT: /(?s:.+)/"]
    return ["start: (triggered call)* TEXT", "TEXT: /(?s:.*)/", f"triggered[lazy]: TEXT {trigger}"]


def _calls(tools: Tools, before: str, between: str, after: str) -> list[str]:
    """Return the rule of any call, and those of each tool."""
    each = [
        f"call_{index}: {json.dumps(before + json.dumps(name) + between)} arguments_{index} {json.dumps(after)}"
        for index, (name, _) in enumerate(tools)
    ]
    return [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}", *each, *_arguments(tools)]


def _arguments(tools: Tools) -> list[str]:
    """Return a rule for the arguments of each tool."""
    rules = [f"arguments_{index}: %json {_parameters(name, schema)}" for index, (name, schema) in enumerate(tools)]
    if (size := sum(map(len, rules))) > MAX_STRUCTURED_OUTPUTS_BYTES:
        raise GrammarRefused(f"the tools make a grammar of {size} bytes; at most {MAX_STRUCTURED_OUTPUTS_BYTES}")
    return rules


def _parameters(name: str, schema: Mapping[str, Any]) -> str:
    """Return the schema of a tool's arguments: of an object, and of no other members than it says."""
    if schema.get("type", "object") != "object":
        raise GrammarRefused(f"the parameters of {name[:64]!r} are of type {schema['type']!r}; object is needed")
    if OPTIONS in schema:
        raise GrammarRefused(f"{OPTIONS} in the parameters of {name[:64]!r}: a schema cannot choose how it is read")
    return json.dumps(closed({**schema, "type": "object"}))
