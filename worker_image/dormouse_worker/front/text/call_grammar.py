"""Grammars of calls: arguments that fit a tool's schema, alone, in a list, or in the tags of a family. Pure.

What bounds calls is a mapping, for it goes to another process: `form` (arguments, list, tags), `tools` as pairs of name
and schema, `is_single`, and for tags what stands around: `trigger` with its `trigger_id`, `before`, `between`, `after`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dormouse_api.limits import MAX_STRUCTURED_OUTPUTS_BYTES
from dormouse_worker.common.grammar import GrammarRefused

OPTIONS = "x-guidance"  # in a schema: how llguidance reads it, up to leaving out what it cannot keep
MAX_FORCED_CALLS = 32  # in a list: a weak model would never end it


def calls_grammar(calls: Mapping[str, Any]) -> str:
    """Return the grammar in Lark's syntax. Raises GrammarRefused naming the tool that it cannot have."""
    tools = calls["tools"]
    bodies = [f"arguments_{index}: %json {_parameters(name, schema)}" for index, (name, schema) in enumerate(tools)]
    text = "\n".join([*_beginning(calls), *bodies, ""])
    if (size := len(text.encode())) > MAX_STRUCTURED_OUTPUTS_BYTES:
        raise GrammarRefused(f"the tools make a grammar of {size} bytes; at most {MAX_STRUCTURED_OUTPUTS_BYTES}")
    return text


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


def _beginning(calls: Mapping[str, Any]) -> list[str]:
    names = [name for name, _ in calls["tools"]]
    if calls["form"] == "arguments":
        return ["start: arguments_0"]
    if calls["form"] == "list":
        more = "" if calls["is_single"] else f' (", " call){{0,{MAX_FORCED_CALLS - 1}}}'
        return [f'start: "[" call{more} "]"', *_calls(names, '{"name": ', ', "parameters": ', "}")]
    return [*_free_text(calls), *_calls(names, calls["before"], calls["between"], calls["after"])]


def _free_text(calls: Mapping[str, Any]) -> list[str]:
    """Return the rules of text in which nothing but a call follows the trigger."""
    if calls["trigger_id"] is not None:
        return [f"start: (TEXT? <[{calls['trigger_id']}]> call)* TEXT?", "TEXT: /(?s:.+)/"]
    trigger = json.dumps(calls["trigger"])
    return ["start: (triggered call)* TEXT", "TEXT: /(?s:.*)/", f"triggered[lazy]: TEXT {trigger}"]


def _calls(names: list[str], before: str, between: str, after: str) -> list[str]:
    """Return the rule of any call, and one for each tool."""
    each = [
        f"call_{index}: {json.dumps(before + json.dumps(name) + between)} arguments_{index} {json.dumps(after)}"
        for index, name in enumerate(names)
    ]
    return [f"call: {' | '.join(f'call_{index}' for index in range(len(names)))}", *each]


def _parameters(name: str, schema: Mapping[str, Any]) -> str:
    """Return the schema of a tool's arguments: of an object, and of no other members than it says."""
    if schema.get("type", "object") != "object":
        raise GrammarRefused(f"the parameters of {name[:64]!r} are of type {schema['type']!r}; object is needed")
    if OPTIONS in schema:
        raise GrammarRefused(f"{OPTIONS} in the parameters of {name[:64]!r}: a schema cannot choose how it is read")
    return json.dumps(closed({**schema, "type": "object"}))
