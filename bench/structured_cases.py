"""What answers are bound by in the benchmark: generated schemas, an object of 60 fields, hostile ones. Pure."""

from __future__ import annotations

import json
import random
from typing import Any

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.front.text.grammar_text import to_text

Schema = dict[str, Any]

NAMES = ("name", "id", "été", "a b c", "it's", 'quo"te', "back\\slash", "x-1", "日本", "tag</s>", "new\nline", "url")
TEXTS = ("red", "green", "42", "don't", "</s>", "https://example.com/?a=b", "  spaces  ", "😀", "<|im_end|>", "null")
PATTERNS = ("^[a-z]{1,4}$", "^[0-9]{4}-[0-9]{2}$", "^(foo|foobar)$", "^[A-F0-9]{2}(:[A-F0-9]{2}){2}$")
FIELDS_OF = ("order", "customer", "item", "invoice", "delivery", "payment")
FIELDS = ("status", "number", "enabled", "priority", "share", "name", "count", "verified", "level", "ratio")
MOST_NESTED = 3
HOSTILE = {
    "multipleOf a prime": {"kind": "json_schema", "value": json.dumps({"type": "integer", "multipleOf": 99999989})},
    "minItems": {
        "kind": "json_schema",
        "value": json.dumps({"type": "array", "items": {"type": "string", "minLength": 500}, "minItems": 500}),
    },
    "repeated groups": {"kind": "regex", "value": "((a{1,200}){1,200}){1,200}b"},
    "a chain of rules": {
        "kind": "grammar",
        "value": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(15_000)) + 'r15000: "a"\n',
    },
}


def make_schema(number: int) -> Schema:
    """Return the schema of this number, the same on every machine."""
    return _schema(random.Random(f"schema/{number}"), 0)


def sixty_fields() -> Schema:
    """Return an object of 60 required fields, as programs ask for."""
    kinds: tuple[Schema, ...] = (
        {"type": "string", "pattern": "^[a-z]{1,8}$"},
        {"type": "integer", "minimum": 0, "maximum": 999},
        {"type": "boolean"},
        {"enum": ["low", "medium", "high"]},
        {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    )
    names = [f"{of}_{what}" for of in FIELDS_OF for what in FIELDS]
    return _object({name: kinds[place % len(kinds)] for place, name in enumerate(names)}, names)


ENDLESS: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 10_000}  # text of any kind, and no end


def bound_by(schema: Schema, end_token_ids: tuple[int, ...]) -> Grammar:
    """Return the grammar of a schema, as the front hands it over, without white space."""
    order = {"kind": "json_schema", "value": json.dumps(schema)}
    flags = {"disable_any_whitespace": True, "disable_additional_properties": False}
    return Grammar(to_text({**order, **flags}), end_token_ids)


def _schema(draw: random.Random, depth: int) -> Schema:
    kind = draw.randrange(4, 12) if depth == 0 else draw.randrange(9 if depth < MOST_NESTED else 6)
    if kind == 0:
        return {"type": "integer", "minimum": draw.choice((0, -7)), "maximum": draw.choice((9, 99, 12345))}
    if kind == 1:
        return {"type": draw.choice(("boolean", "null"))}
    if kind == 2:
        return {"const": draw.choice(TEXTS) + draw.choice(TEXTS)}
    if kind == 3:
        return {"enum": [draw.choice(TEXTS), draw.randrange(100), None][: draw.randint(1, 3)]}
    if kind == 4:
        return {"type": "string", "pattern": draw.choice(PATTERNS)}
    if kind == 5:
        return {"type": "string", "maxLength": draw.randint(0, 6)}
    if kind == 6:
        return {"type": "array", "items": _schema(draw, depth + 1), "minItems": draw.randint(0, 2), "maxItems": 3}
    names = [f"{draw.choice(NAMES)}{place}" for place in range(draw.randint(1, 4))]
    required = [name for name in names if draw.random() < 0.7]
    return _object({name: _schema(draw, depth + 1) for name in names}, required)


def _object(properties: dict[str, Schema], required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
