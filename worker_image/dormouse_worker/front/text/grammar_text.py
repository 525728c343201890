"""From what a caller binds an answer by to one grammar in llguidance's words. Nothing is compiled here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llguidance import LLMatcher, StructTag

from dormouse_worker.common.grammar import GrammarRefused
from dormouse_worker.front.text.argument_grammar import BLANKS, spaced
from dormouse_worker.front.text.call_grammar import OPTIONS, calls_grammar
from dormouse_worker.front.text.closed_objects import closed
from dormouse_worker.front.text.composed_grammar import composed
from dormouse_worker.front.text.endless import is_endless
from dormouse_worker.front.text.endless_grammar import needs_itself
from dormouse_worker.front.text.gbnf import is_ebnf, to_lark

# of a Lark grammar, what may hold names of special tokens: strings, comments, patterns; and such names
LARK_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|<[^<>\s]+>')
TAG_FIELDS, STRUCTURE_FIELDS = {"type", "structures", "triggers"}, {"begin", "schema", "end"}


def to_text(order: Mapping[str, Any], special_tokens: Mapping[str, int] = MappingProxyType({})) -> str:
    """Return the grammar for a constraint: `kind` and `value` as in StructuredOutputs, and what holds for JSON.

    `kind` "calls" is that of `call_grammar`; `calls` may come instead of what is bound, `thoughts` before it. A Lark
    grammar may name special tokens, whose ids are here.
    Raises GrammarRefused saying which part of it nobody can keep.
    """
    return composed(_bound(order, special_tokens), order.get("thoughts"), order.get("calls"))


def _bound(order: Mapping[str, Any], special_tokens: Mapping[str, int]) -> str:
    kind, value = order["kind"], order["value"]
    if kind == "calls":
        return LLMatcher.grammar_from_lark(calls_grammar(value))
    if kind == "json_schema":
        return _json(_schema(value, closes_objects=order["disable_additional_properties"]), order)
    if kind == "json_object":
        return _json({"type": "object"}, order)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(value)
    if kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(option) for option in value))
    if kind == "grammar":
        lark = to_lark(value) if is_ebnf(value) else _with_ids(value, special_tokens)
        if needs_itself(lark):
            raise GrammarRefused("grammar needs itself, which no text satisfies")
        return LLMatcher.grammar_from_lark(lark)
    return LLMatcher.grammar_from_lark(_tags(value))


def _with_ids(lark: str, special_tokens: Mapping[str, int]) -> str:
    """Name special tokens by their ids, as the tokenizer of grammars knows them; what else stands there stays."""

    def by_id(part: re.Match[str]) -> str:
        token_id = special_tokens.get(part[0])
        return part[0] if token_id is None else f"<[{token_id}]>"

    return LARK_PARTS.sub(by_id, lark)


def _json(schema: Any, order: Mapping[str, Any]) -> str:
    how: Any = {"whitespace_flexible": False} if order["disable_any_whitespace"] else {"whitespace_pattern": BLANKS}
    try:
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides=how | {"lenient": False, "coerce_one_of": False}
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
    if is_endless(schema):
        raise GrammarRefused("json_schema needs itself, which no text satisfies")
    return closed(schema) if closes_objects else schema


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
        if is_endless(structure["schema"]):
            raise GrammarRefused(
                f"structural_tag: the schema of structure {number} needs itself, which no text satisfies"
            )
        schema = json.dumps(spaced(structure["schema"]))
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
