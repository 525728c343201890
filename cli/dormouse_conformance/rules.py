"""What a rule of the worker protocol is: a sentence, and the check that tries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dormouse_api.capabilities import Capability
from dormouse_conformance.subject import Subject

SPECIFICATION = "docs/reference/worker-protocol.md"

Check = Callable[[Subject], None]  # raises Missed, Blocked or Refused: what was refused should have succeeded


@dataclass(frozen=True, slots=True)
class Rule:
    """One sentence of the specification."""

    name: str  # within its section
    says: str
    check: Check
    needs: Capability | None = None  # only those who claim it have to keep it


@dataclass(frozen=True, slots=True)
class Section:
    """Rules about one thing, in the order in which they are tried."""

    name: str
    about: str  # what a reader has to know before the rules
    rules: tuple[Rule, ...]

    def full_name(self, rule: Rule) -> str:
        """Return the name by which a rule is asked for."""
        return f"{self.name}.{rule.name}"

    @property
    def title(self) -> str:
        """Return its heading, to which `where` leads."""
        return self.name.capitalize()

    @property
    def where(self) -> str:
        """Return where the specification says it."""
        return f"{SPECIFICATION}#{self.name}"
