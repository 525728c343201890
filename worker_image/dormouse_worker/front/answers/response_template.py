"""A checkpoint's own description of its answers: `response_template` of tokenizer_config.json, format of transformers.

Read and checked once, at the start. What of the format is not kept is refused by name, with the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import regex

from dormouse_worker.front.answers.response_calls import CallReader, Unsupported, read_call_field

RESPONSE_TEMPLATE = "response_template"  # the name under which settings, requests and descriptions speak of it
Kind = Literal["content", "reasoning", "calls"]
_KINDS: Mapping[str, Kind] = {
    "content": "content",
    "thinking": "reasoning",
    "reasoning": "reasoning",
    "reasoning_content": "reasoning",
    "tool_calls": "calls",
}
_TEMPLATE_KEYS = frozenset({"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"})
_EDGE_KEYS = frozenset({"open", "open_pattern", "close", "close_pattern"})
_FIELD_KEYS = _EDGE_KEYS | {
    "content",
    "content_args",
    "repeats",
    "join",
    "optional",  # whether an answer without the field is an error: an answer never is
    "transform",
    "transform_each",
}


@dataclass(frozen=True, slots=True)
class Anchor:
    """What begins or ends a region: one of some texts, or an expression."""

    pattern: regex.Pattern[str]
    literals: tuple[str, ...] = ()  # none: an expression

    @property
    def can_grow(self) -> bool:
        """Return whether a match at the end of what is there may be longer when more comes."""
        return not self.literals or any(a != b and a.startswith(b) for a in self.literals for b in self.literals)

    @property
    def text(self) -> str:
        """Return a text in which every special token stands that a match may have."""
        return " ".join(self.literals) or regex.sub(r"\\([^\w\s])", r"\1", self.pattern.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One region of an answer."""

    name: str
    kind: Kind
    opening: Anchor | None  # None: the text between the other regions
    closing: Anchor | None  # None: up to the end
    is_verbatim: bool = False  # white space around belongs to the text
    join: str = ""  # between two such regions
    calls: CallReader | None = None  # of calls: how a region is read


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """All regions of a model's answers, and where in a prompt an answer begins."""

    start: Anchor
    fields: tuple[Field, ...]

    @property
    def leftover(self) -> Field | None:
        """Return whose the text between the other regions is, None if nobody's."""
        return next((field for field in self.fields if field.opening is None), None)

    def has(self, kind: Kind) -> bool:
        """Return whether answers have such a part."""
        return any(field.kind == kind for field in self.fields)

    @property
    def markers(self) -> frozenset[str]:
        """Return texts in which all special tokens stand that delimit something."""
        edges = [edge.text for field in self.fields for edge in (field.opening, field.closing) if edge]
        return frozenset({*edges, *(text for field in self.fields if field.calls for text in field.calls.markers)})

    def begun(self, prompt: str) -> str | None:
        """Return what of the answer a prompt has already, None if no answer begins in this text."""
        starts = [*self.start.pattern.finditer(prompt)]
        return prompt[starts[-1].end() :] if starts else None


def read_response_template(spec: Any) -> ResponseTemplate:
    """Return what a checkpoint says. Raises Unsupported naming the field and what it may be."""
    if not isinstance(spec, Mapping):
        raise Unsupported("response_template is no object")
    _check_keys("response_template", spec, _TEMPLATE_KEYS)
    if spec.get("version", 1) != 1:
        raise Unsupported(f"response_template.version is {spec['version']!r}; 1 is known")
    _check_defaults(spec.get("defaults", {}))
    fields = spec.get("fields")
    if not isinstance(fields, Mapping) or not fields:
        raise Unsupported("response_template.fields is no object with members")
    start = _anchor("response_template", spec, "start_anchor")
    if start is None:
        raise Unsupported("response_template has neither start_anchor nor start_anchor_pattern")
    template = ResponseTemplate(start, tuple(_field(name, field) for name, field in fields.items()))
    if sum(field.opening is None for field in template.fields) > 1:
        raise Unsupported("response_template.fields: more than one has neither open nor open_pattern")
    return template


def _field(name: str, spec: Any) -> Field:
    where = f"response_template.fields.{name}"
    kind = _KINDS.get(name)
    if kind is None:
        raise Unsupported(f"{where} is unknown; fields are {', '.join(_KINDS)}")
    if not isinstance(spec, Mapping):
        raise Unsupported(f"{where} is no object")
    _check_keys(where, spec, _FIELD_KEYS)
    opening, closing = _anchor(where, spec, "open"), _anchor(where, spec, "close")
    if kind == "calls":
        if opening is None:
            raise Unsupported(f"{where} has neither open nor open_pattern: any text would be a call")
        captured = {*opening.pattern.groupindex}
        return Field(
            name=name, kind=kind, opening=opening, closing=closing, calls=read_call_field(where, spec, captured)
        )
    for key in ("transform", "transform_each"):
        if spec.get(key):
            raise Unsupported(f"{where}.{key}: text is told as it is")
    if spec.get("content", "text") != "text":
        raise Unsupported(f"{where}.content is {spec['content']!r}; text is known")
    is_verbatim, join = not _strips(where, spec), _join(where, spec)
    return Field(name=name, kind=kind, opening=opening, closing=closing, is_verbatim=is_verbatim, join=join)


def _strips(where: str, spec: Mapping[str, Any]) -> bool:
    args = spec.get("content_args", {})
    if not isinstance(args, Mapping) or not isinstance(args.get("strip", True), bool):
        raise Unsupported(f"{where}.content_args is no object whose strip is true or false")
    _check_keys(f"{where}.content_args", args, frozenset({"strip"}))
    return bool(args.get("strip", True))


def _join(where: str, spec: Mapping[str, Any]) -> str:
    join = spec.get("join")
    if spec.get("repeats") and join is None:
        raise Unsupported(f"{where}.repeats without join: a list of texts is no text")
    if join is not None and not isinstance(join, str):
        raise Unsupported(f"{where}.join is no string")
    return join or ""


def _anchor(where: str, spec: Mapping[str, Any], key: str) -> Anchor | None:
    """Return the anchor that `key` or `key_pattern` says, None if neither does."""
    expression = f"{key}_pattern"
    if key in spec and expression in spec:
        raise Unsupported(f"{where} has both {key} and {expression}")
    if key in spec:
        said = [spec[key]] if isinstance(spec[key], str) else spec[key]
        if not isinstance(said, list) or not said or not all(isinstance(text, str) and text for text in said):
            raise Unsupported(f"{where}.{key} is no text, nor a list of texts")
        longest_first = sorted({*said}, key=lambda text: (-len(text), text))
        return Anchor(regex.compile("|".join(map(regex.escape, longest_first))), tuple(longest_first))
    if expression not in spec:
        return None
    try:
        return Anchor(regex.compile(spec[expression], regex.DOTALL))
    except (regex.error, TypeError) as error:
        raise Unsupported(f"{where}.{expression} is no expression: {error}") from error


def _check_keys(where: str, spec: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(map(str, spec.keys() - known)):
        raise Unsupported(f"{where}.{unknown[0]} is unknown; there are {', '.join(sorted(known))}")


def _check_defaults(defaults: Any) -> None:
    """Refuse defaults that put words into an answer."""
    if not isinstance(defaults, Mapping):
        raise Unsupported("response_template.defaults is no object")
    if said := next(_saying(defaults), None):
        raise Unsupported(f"response_template.defaults.{said}: only role may be there")


def _saying(defaults: Mapping[str, Any]) -> Iterator[str]:
    return (str(name) for name, value in defaults.items() if name != "role" and value)
