"""From what a caller binds an answer by to one grammar in llguidance's words. Nothing is compiled here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, StructTag

from dormouse_worker.common.grammar import GrammarRefused

OPTIONS = "x-guidance"  # in a schema: how llguidance reads it, up to leaving out what it cannot keep
TAG_FIELDS, STRUCTURE_FIELDS = {"type", "structures", "triggers"}, {"begin", "schema", "end"}


def to_text(order: Mapping[str, Any]) -> str:
    """Return the grammar for a constraint: `kind` and `value` as in StructuredOutputs, and what holds for JSON.

    Raises GrammarRefused saying which part of it nobody can keep.
    """
    kind, value = order["kind"], order["value"]
    if kind == "json_schema":
        return _json(_schema(value, closes_objects=order["disable_additional_properties"]), order)
    if kind == "json_object":
        return _json({"type": "object"}, order)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(value)
    if kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(option) for option in value))
    if kind == "grammar":
        return LLMatcher.grammar_from_lark(value)
    return LLMatcher.grammar_from_lark(_tags(value))


def _json(schema: Any, order: Mapping[str, Any]) -> str:
    is_flexible = not order["disable_any_whitespace"]
    try:
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_flexible": is_flexible, "lenient": False, "coerce_one_of": False}
        )
    except ValueError as error:
        raise GrammarRefused(str(error)) from error


def _schema(value: str, *, closes_objects: bool) -> Any:
    schema = _parsed(value, "json_schema")
    if not isinstance(schema, dict | bool):
        raise GrammarRefused(f"json_schema is a JSON {type(schema).__name__}; an object or a boolean is needed")
    if schema is False:
        raise GrammarRefused("json_schema is false, which no text satisfies")
    if schema is True:
        return {}
    if OPTIONS in schema:
        raise GrammarRefused(f"{OPTIONS}: a schema cannot choose how it is read")
    return _closed(schema) if closes_objects else schema


def _closed(schema: Any) -> Any:
    """Return the schema with additionalProperties false wherever an object's properties stand without it."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    is_open = "additionalProperties" not in schema and "patternProperties" not in schema
    if is_open and ("properties" in schema or schema.get("type") == "object"):
        closed["additionalProperties"] = False
    return closed


def _parsed(value: str, field: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"{field} is no JSON: {error}") from error


def _tags(value: str) -> str:
    """Return the Lark grammar of a structural tag."""
    tag = _parsed(value, "structural_tag")
    structures, triggers = _tag_parts(tag)
    tags = []
    for number, structure in enumerate(structures):
        begin = structure["begin"]
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise GrammarRefused(f"structural_tag: the begin of structure {number} starts with none of the triggers")
        if OPTIONS in structure["schema"]:
            raise GrammarRefused(f"structural_tag: {OPTIONS}: a schema cannot choose how it is read")
        schema = json.dumps(structure["schema"])
        tags.append(StructTag(trigger=trigger, begin=begin, grammar=schema, end=structure.get("end", "")))
    return StructTag.to_grammar(tags, assume_special=False)


def _tag_parts(tag: Any) -> tuple[list[dict[str, Any]], list[str]]:
    if not isinstance(tag, dict) or tag.keys() - TAG_FIELDS or tag.get("type", "structural_tag") != "structural_tag":
        raise GrammarRefused(
            f"structural_tag is another kind; an object with {', '.join(sorted(TAG_FIELDS))} is needed"
        )
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not (isinstance(structures, list) and structures and all(map(_is_structure, structures))):
        raise GrammarRefused("structural_tag.structures: at least one object with begin, schema and end is needed")
    if not (isinstance(triggers, list) and all(isinstance(trigger, str) and trigger for trigger in triggers)):
        raise GrammarRefused("structural_tag.triggers: strings are needed, none of them empty")
    return structures, triggers


def _is_structure(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and not value.keys() - STRUCTURE_FIELDS
        and isinstance(value.get("begin"), str)
        and isinstance(value.get("end", ""), str)
        and isinstance(value.get("schema"), dict)
    )
