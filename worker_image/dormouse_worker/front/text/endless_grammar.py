"""Which Lark grammars only endless texts satisfy: those whose start needs itself. Pure, and careful.

Only what rules say is looked at: terminals, tokens, regular expressions and nested grammars end, a JSON Schema as
`endless` says. A grammar with a word that is not known here counts as one that ends; llguidance refuses it or keeps it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count

from dormouse_worker.front.text.endings import Clause, what_ends
from dormouse_worker.front.text.endless import is_endless

_TOKEN = re.compile(
    r"(?P<blank>\s+|//[^\n]*|\#[^\n]*|->\s*\w+|\.\.)|(?P<statement>%(?:ignore|import|declare|llguidance)\b[^\n]*)"
    r"|(?P<nested>%(?:json|regex)\s*)(?=\{)"
    r'|(?P<rule>[?!]?(?P<name>[^\W\d]\w*(?:-\w+)*)(?:\.\d+)?\s*(?:\[(?:"(?:\\.|[^"\\\n])*"|[^"\[\]])*\]\s*)?:)'
    r"|(?P<word>[^\W\d]\w*(?:-\w+)*)"
    r'|(?P<ends>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*|<[^<>\s]+>|@[\w-]+)'
    r"|(?P<times>[?*+]|\{\s*\d*\s*,?\s*\d*\s*\}|~\s*\d+(?:\s*\.\.\s*\d+)?)"
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<or>\|)"
)
_MAY_BE_NONE = re.compile(r"[?*]|[{~]\s*(?:0|,|\})")
_START, _NEVER = "start", ("never",)
_JSON = json.JSONDecoder()


def needs_itself(lark: str) -> bool:
    """Return whether no finite text can satisfy a grammar."""
    clauses = _Reader(lark).read()
    return clauses is not None and any(head == _START for head, _ in clauses) and _START not in what_ends(clauses)


@dataclass(slots=True)
class _Choice:
    """A rule, or a group in one, while it is read: `body` is what its present alternative needs. None ends anyway."""

    head: Hashable
    is_optional: bool = False
    body: list[Hashable | None] = field(default_factory=list)


class _Reader:
    """Reads one grammar, without recursion."""

    def __init__(self, lark: str) -> None:
        self._lark = lark
        self._clauses: list[Clause] = []
        self._open: list[_Choice] = []  # the rule that is read, and the groups in it
        self._rules: set[str] = set()
        self._numbers = count()

    def read(self) -> list[Clause] | None:
        """Return when each rule and each group ends. None if something is not understood."""
        place: int | None = 0
        while place is not None and place < len(self._lark):
            found = _TOKEN.match(self._lark, place)
            place = self._take(found) if found else None
        if place is None or not self._end_rule():
            return None
        named = {name for _, body in self._clauses for name in body if isinstance(name, str)}
        return [*self._clauses, *((name, ()) for name in named - self._rules)]  # terminals, and what is refused

    def _take(self, found: re.Match[str]) -> int | None:
        """Read a word; return where the next begins, or None if it cannot stand there."""
        kind, text = str(found.lastgroup), found[0]
        if kind in {"rule", "statement"}:
            if not self._end_rule():
                return None
            if kind == "rule":
                self._begin_rule(found["name"])
        elif kind != "blank":
            if not self._open:
                return None
            if kind == "nested":
                return self._take_nested(found.end(), is_schema=text.startswith("%json"))
            if not self._take_part(kind, text):
                return None
        return found.end()

    def _take_part(self, kind: str, text: str) -> bool:
        choice = self._open[-1]
        if kind == "or":
            self._end_alternative()
        elif kind == "open":
            self._open.append(_Choice(next(self._numbers), is_optional=text == "["))
        elif kind == "close":
            return self._end_group()
        elif kind == "word":
            choice.body.append(text)
        elif kind == "ends":
            choice.body.append(None)
        elif choice.body and _MAY_BE_NONE.match(text):
            choice.body[-1] = None
        return True

    def _take_nested(self, place: int, *, is_schema: bool) -> int | None:
        try:
            value, end = _JSON.raw_decode(self._lark, place)
        except ValueError:
            return None
        self._open[-1].body.append(_NEVER if is_schema and is_endless(value) else None)
        return end

    def _begin_rule(self, name: str) -> None:
        self._open = [_Choice(name)]
        if name == name.lower():
            self._rules.add(name)

    def _end_rule(self) -> bool:
        if self._open:
            self._end_alternative()
        return len(self._open) < 2

    def _end_group(self) -> bool:
        if len(self._open) < 2:
            return False
        self._end_alternative()
        group = self._open.pop()
        self._open[-1].body.append(None if group.is_optional else group.head)
        return True

    def _end_alternative(self) -> None:
        choice = self._open[-1]
        self._clauses.append((choice.head, [part for part in choice.body if part is not None]))
        choice.body = []
