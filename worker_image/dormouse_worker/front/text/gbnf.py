"""From a grammar in EBNF, as llama.cpp (GBNF), xgrammar and vLLM's examples write it, to the same one in Lark.

llguidance takes the longest word that a terminal allows, which the rules do not say. Here each terminal is one
character, so the language stays theirs. Source: llama.cpp, grammars/README.md; a rule may also go on in the next line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dormouse_worker.common.grammar import GrammarRefused

_RULE = re.compile(r"^[^\S\n]*[\w-]+\s*::=", re.MULTILINE)
_TOKEN = re.compile(
    r'(?P<blank>\s+|#[^\n]*)|(?P<rule>[\w-]+\s*::=)|(?P<name>[\w-]+)|(?P<literal>"(?:\\.|[^"\\\n])*")'
    r"|(?P<set>\[\^?(?:\\.|[^\]\\\n])*\])|(?P<mark>[.()|*+?])|(?P<times>\{\s*\d+\s*(?:,\s*\d*\s*)?\})"
)
_CHARACTER = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|([^\\])")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"} | {character: character for character in "\\\"'[]-^/"}
_START, _MAX_DEPTH = "root", 64  # of groups within each other
_REPEATS = frozenset({"*", "+", "?"})


@dataclass(frozen=True, slots=True)
class _Part:
    """What stands in a rule: `kind` as in `_TOKEN`, `text` as it was written."""

    kind: str
    text: str
    line: int

    def refuse(self, why: str) -> GrammarRefused:
        """Return a refusal that says where."""
        return GrammarRefused(f"grammar: line {self.line}: {self.text}: {why}")


def is_ebnf(text: str) -> bool:
    """Return whether a grammar has a rule as EBNF writes them; Lark has no `::=`."""
    return _RULE.search(text) is not None


def to_lark(text: str) -> str:
    """Return the grammar in Lark's syntax. Raises GrammarRefused saying what is not understood, and where."""
    rules = _rules(text)
    if _START not in rules:
        raise GrammarRefused(f"grammar: no rule is named {_START}, with which an answer begins")
    names = {name: "start" if name == _START else f"r{number}" for number, name in enumerate(rules)}
    return "\n".join(f"{names[name]}: {_written(parts, names)}" for name, parts in rules.items())


def _rules(text: str) -> dict[str, list[_Part]]:
    """Return the parts of each rule by its name."""
    rules: dict[str, list[_Part]] = {}
    current: list[_Part] | None = None
    for part in _parts(text):
        if part.kind == "rule":
            name = part.text.removesuffix("::=").strip()
            if name in rules:
                raise part.refuse("there is a rule of this name already")
            current = rules[name] = []
        elif current is None:
            raise part.refuse("a rule is needed before it, as in root ::= ...")
        else:
            current.append(part)
    return rules


def _parts(text: str) -> Iterable[_Part]:
    place, line = 0, 1
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise GrammarRefused(f"grammar: line {line}: {text[place : place + 20]!r} is not understood")
        if found.lastgroup != "blank":
            yield _Part(str(found.lastgroup), found[0], line)
        line += found[0].count("\n")
        place = found.end()


def _written(parts: Iterable[_Part], names: dict[str, str]) -> str:
    """Return what a rule says in Lark's words."""
    words: list[str] = []
    opened: list[_Part] = []
    may_repeat = False
    for part in parts:
        repeats = part.text in _REPEATS or part.kind == "times"
        if repeats and not may_repeat:
            raise part.refuse("there is nothing before it that it could repeat")
        if part.text == "(":
            opened.append(part)
        elif part.text == ")" and not opened:
            raise part.refuse("no group is open")
        elif part.text == ")":
            opened.pop()
        if len(opened) > _MAX_DEPTH:
            raise part.refuse(f"groups may stand {_MAX_DEPTH} deep in each other")
        words.append(_word(part, names))
        may_repeat = not repeats and part.text not in {"(", "|"}
    if opened:
        raise opened[-1].refuse("the group is not closed")
    return " ".join(words) or '""'


def _word(part: _Part, names: dict[str, str]) -> str:
    if part.kind == "name":
        if part.text not in names:
            raise part.refuse("there is no such rule")
        return names[part.text]
    if part.kind == "literal":
        codes = _codes(part, part.text[1:-1])
        return "(" + (" ".join(f"/{_code(code)}/" for code in codes) or '""') + ")"
    if part.kind == "set":
        return _set(part)
    return "/(?s:.)/" if part.text == "." else re.sub(r"\s", "", part.text)


def _set(part: _Part) -> str:
    """Return the pattern of one character."""
    inner = part.text[1:-1]
    is_negated = inner.startswith("^")
    found = list(_CHARACTER.finditer(inner, int(is_negated)))
    codes, ranges, place = _codes(part, inner[is_negated:]), [], 0
    while place < len(codes):
        is_range = place + 2 < len(codes) and found[place + 1][0] == "-"
        last = codes[place + 2] if is_range else codes[place]
        if last < codes[place]:
            raise part.refuse("a range ends before it begins")
        ranges.append(f"{_code(codes[place])}-{_code(last)}")
        place += 3 if is_range else 1
    if not ranges:
        raise part.refuse("it has no character")
    return f"/[{'^' * is_negated}{''.join(ranges)}]/"


def _codes(part: _Part, text: str) -> list[int]:
    """Return the characters of a literal or a set."""
    codes = []
    for found in _CHARACTER.finditer(text):
        hexadecimal = found[1] or found[2] or found[3]
        if hexadecimal is None and found[4] is not None and found[4] not in _ESCAPED:
            raise part.refuse(f"\\{found[4]} is no escape; \\n, \\r, \\t, \\xHH, \\uHHHH and \\UHHHHHHHH are")
        codes.append(int(hexadecimal, 16) if hexadecimal else ord(_ESCAPED[found[4]] if found[4] else found[5]))
        if codes[-1] > 0x10FFFF or 0xD800 <= codes[-1] <= 0xDFFF:
            raise part.refuse("it names what is no character")
    return codes


def _code(code: int) -> str:
    return f"\\x{{{code:x}}}"
