"""How a region of a `response_template` becomes calls: what its content is, and where names and arguments are in it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import regex

from dormouse_worker.front.answers.argument_values import fitting, text_members
from dormouse_worker.front.answers.calls import (
    MemberNames,
    begin,
    checked_name,
    read_arguments,
    read_object,
    read_objects,
)
from dormouse_worker.front.answers.closable_json import Malformed
from dormouse_worker.front.answers.emitter import Emitter
from dormouse_worker.front.answers.source import Source, Wait

SEARCH_TIMEOUT_S = 0.02  # of the processor: an expression that takes longer is given up
_PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")
_ARGS = {
    "json": frozenset({"unquoted_keys", "string_delims", "allow_non_json"}),
    "xml-inline": frozenset({"tag_pattern", "value_parser", "merge_duplicates"}),
    "kv-lines": frozenset({"line_sep", "kv_sep", "value_parser"}),
    "text": frozenset({"strip"}),
}
_HELD = regex.compile("\x01(\\d+)\x02")  # stands for a string that was set aside
Path = tuple[str, ...]  # a capture's name or "content", and the members on the way


class Unsupported(ValueError):
    """A template says what is not kept, or makes no sense. The message names the field."""


@dataclass(frozen=True, slots=True)
class Content:
    """What stands in a region, or in a value of it."""

    kind: Literal["json", "xml-inline", "kv-lines", "text"]
    args: Mapping[str, Any]
    pattern: regex.Pattern[str] | None = None  # of xml-inline
    values: Content | None = None  # of the other two that have values; None: as they stand


@dataclass(frozen=True, slots=True)
class CallReader:
    """Reads the calls of one region."""

    content: Content
    name: Path
    arguments: Path
    is_list: bool = False  # a JSON list, of which every item is a call

    @property
    def comes_in_pieces(self) -> bool:
        """Return whether arguments are plain JSON, told while they are written."""
        if self.content.kind != "json" or self.content.args:
            return False
        return self._takes_all or (_is_member(self.name) and _is_member(self.arguments))

    @property
    def markers(self) -> tuple[str, ...]:
        """Return texts in which the special tokens of the content stand."""
        pattern = self.content.pattern
        said = json.dumps(self.content.args, ensure_ascii=False)
        return (said, regex.sub(r"\\([^\w\s])", r"\1", pattern.pattern)) if pattern else (said,)

    @property
    def _takes_all(self) -> bool:
        return self.name[0] != "content" and self.arguments == ("content",) and not self.is_list

    def read_json(self, source: Source, out: Emitter, captures: Mapping[str, str]) -> Wait:
        """Read plain JSON as it comes. Raises Malformed."""
        if self._takes_all:
            yield from read_arguments(source, begin(source, out, _name(_at(self.name, captures))))
            return
        names = MemberNames(frozenset(self.name[-1:]), frozenset(self.arguments[-1:]))
        if (yield from source.skip_space()) == "[":
            yield from read_objects(source, out, names=names)
        else:
            yield from read_object(source, out, names=names)

    def tell(self, out: Emitter, captures: Mapping[str, str], body: str) -> None:
        """Tell the calls of a whole region. Raises Malformed, with nothing told."""
        value = _value(body, self.content, text_members(out.tools.get(captures.get(self.name[0], ""), {})))
        if self.is_list and not isinstance(value, list):
            raise Malformed("no list of calls")
        scopes = [{**captures, "content": item} for item in (value if self.is_list else [value])]
        calls = [(_name(_at(self.name, scope)), _at(self.arguments, scope)) for scope in scopes]
        written = [(name, fitting(arguments, out.tools.get(name, {}))) for name, arguments in calls]
        for name, arguments in written:
            out.begin_call(name).text(arguments)


def read_call_field(where: str, spec: Mapping[str, Any], captures: Collection[str]) -> CallReader:
    """Return what reads the calls of a field. Raises Unsupported naming what of it is not kept."""
    if spec.get("join") is not None:
        raise Unsupported(f"{where}.join: calls are not joined")
    content = _content(where, spec.get("content", "text"), spec.get("content_args", {}))
    if content.kind == "text":
        raise Unsupported(f"{where}.content is text; of calls it is json, xml-inline or kv-lines")
    is_list = spec.get("transform_each", False) is True
    if is_list and content.kind != "json":
        raise Unsupported(f"{where}.transform_each is of content json")
    name, arguments = _shape(f"{where}.transform", spec.get("transform", "{content}"), captures, is_list=is_list)
    return CallReader(content, name, arguments, is_list)


def _content(where: str, kind: Any, args: Any) -> Content:
    if kind not in _ARGS:
        raise Unsupported(f"{where}.content is {kind!r}; there are {', '.join(_ARGS)}")
    if not isinstance(args, Mapping) or (unknown := sorted(map(str, args.keys() - _ARGS[kind]))):
        named = f".{unknown[0]}" if isinstance(args, Mapping) else ""
        raise Unsupported(f"{where}.content_args{named}: {kind} takes {', '.join(sorted(_ARGS[kind]))}")
    _check_args(where, args)
    values = args.get("value_parser")
    if values is not None and not isinstance(values, Mapping):
        raise Unsupported(f"{where}.content_args.value_parser is no object")
    parsed = None if values is None else _content(where, values.get("name", "text"), values.get("args", {}))
    return Content(kind, args, _tag_pattern(where, args) if kind == "xml-inline" else None, parsed)


def _check_args(where: str, args: Mapping[str, Any]) -> None:
    delims = args.get("string_delims", [])
    is_pairs = isinstance(delims, list) and all(
        isinstance(pair, list) and list(map(type, pair)) == [str, str] and all(pair) for pair in delims
    )
    if not is_pairs:
        raise Unsupported(f"{where}.content_args.string_delims is no list of pairs of texts")
    for key in ("line_sep", "kv_sep"):
        if key in args and not (isinstance(args[key], str) and args[key]):
            raise Unsupported(f"{where}.content_args.{key} is no text")


def _tag_pattern(where: str, args: Mapping[str, Any]) -> regex.Pattern[str]:
    try:
        pattern = regex.compile(args.get("tag_pattern"), regex.DOTALL)
    except (regex.error, TypeError) as error:
        raise Unsupported(f"{where}.content_args.tag_pattern is no expression: {error}") from error
    if "key" not in pattern.groupindex:
        raise Unsupported(f"{where}.content_args.tag_pattern has no group key")
    return pattern


def _shape(where: str, transform: Any, captures: Collection[str], *, is_list: bool) -> tuple[Path, Path]:
    """Return where a call's name and its arguments stand, of `{type, function: {name, arguments}}`."""
    function = transform.get("function", transform) if isinstance(transform, Mapping) else transform
    if function == "{content}" and not is_list:
        return ("content", "name"), ("content", "arguments")
    if not isinstance(function, Mapping) or function.keys() != {"name", "arguments"}:
        raise Unsupported(f"{where} is no function with name and arguments")
    if function is not transform and transform.keys() - {"type", "function", "id"}:
        raise Unsupported(f"{where} has more than type, function and id")
    name, arguments = (
        _path(f"{where}.{key}", function[key], captures, is_list=is_list) for key in ("name", "arguments")
    )
    return name, arguments


def _path(where: str, text: Any, captures: Collection[str], *, is_list: bool) -> Path:
    found = _PLACEHOLDER.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise Unsupported(f"{where} is {text!r}; it has to be one placeholder")
    root, *members = found.group(1).split(".")
    if root in captures or (root == "content" and not is_list):
        return (root, *members)
    if is_list:  # members of an item stand beside what was captured
        return ("content", root, *members)
    raise Unsupported(f"{where}: {root!r} is neither content nor a group of open_pattern or close_pattern")


def _is_member(path: Path) -> bool:
    return path[0] == "content" and len(path) == len(("content", "member"))


def _at(path: Path, scope: Mapping[str, Any]) -> Any:
    """Return what stands there. Raises Malformed."""
    value: Any = scope
    for step in path:
        if not isinstance(value, Mapping) or step not in value:
            raise Malformed(f"no {step!r} where a call has it")
        value = value[step]
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed("a name is no text")
    return checked_name(value)


def _value(text: str, content: Content, texts: Collection[str] = ()) -> Any:
    """Return what a text means; `texts` are members that stay as they stand. Raises Malformed."""
    if content.kind == "json":
        return _json_value(text, content.args)
    if content.kind == "text":
        return text.strip() if content.args.get("strip", True) else text
    pairs = _tags(text, content) if content.kind == "xml-inline" else _lines(text, content.args)
    found: dict[str, Any] = {}
    for key, said in pairs:
        value = said if content.values is None or key in texts else _value(said, content.values)
        if key not in found or not content.args.get("merge_duplicates"):
            found[key] = value
        elif isinstance(found[key], list):
            found[key].append(value)
        else:
            found[key] = [found[key], value]
    return found


def _json_value(text: str, args: Mapping[str, Any]) -> Any:
    """Return a value of JSON in one of its dialects: keys without quotes, other delimiters of strings."""
    if _HELD.search(text):
        raise Malformed("characters that nobody writes")
    strings: list[str] = []

    def held(found: regex.Match[str]) -> str:
        strings.append(json.dumps(found.group(1)))
        return f"\x01{len(strings) - 1}\x02"

    plain = text
    for opening, closing in args.get("string_delims", []):
        plain = regex.sub(f"{regex.escape(opening)}(.*?){regex.escape(closing)}", held, plain, flags=regex.DOTALL)
    if args.get("unquoted_keys"):
        plain = regex.sub(r"(?<=[{,])\s*(\w+)\s*:", r'"\1":', plain)
    try:
        return json.loads(_HELD.sub(lambda found: strings[int(found.group(1))], plain))
    except (ValueError, RecursionError) as error:
        if args.get("allow_non_json"):
            return text.strip()
        raise Malformed("no JSON") from error


def _tags(text: str, content: Content) -> list[tuple[str, str]]:
    assert content.pattern is not None
    try:
        found = [match.groupdict() for match in content.pattern.finditer(text, timeout=SEARCH_TIMEOUT_S)]
    except TimeoutError as error:
        raise Malformed("tags that take too long to find") from error
    return [(groups["key"] or "", groups.get("value") or "") for groups in found]


def _lines(text: str, args: Mapping[str, Any]) -> list[tuple[str, str]]:
    parts = [line.partition(args.get("kv_sep", ":")) for line in text.split(args.get("line_sep", "\n"))]
    return [(key.strip(), value.strip()) for key, separator, value in parts if separator]
