"""Tries rules on a worker, one after the other, and tells what was found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dormouse_conformance.findings import Blocked, Missed, Refused, Unclaimed
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject


class Outcome(StrEnum):
    """How it went with a rule."""

    PASSED = "passed"
    FAILED = "failed"  # the worker breaks it
    BLOCKED = "blocked"  # it could not be tried
    NOT_CLAIMED = "not claimed"  # the worker need not keep it


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one rule."""

    rule: str
    outcome: Outcome
    says: str
    where: str
    expected: str = ""
    seen: str = ""
    seconds: float = 0.0


def chosen(sections: Sequence[Section], only: Sequence[str]) -> list[tuple[Section, Rule]]:
    """Return the rules, or all of the sections, of these names; every one for none. Raises ValueError."""
    every = [(section, rule) for section in sections for rule in section.rules]
    known = {name for section, rule in every for name in (section.name, section.full_name(rule))}
    if unknown := sorted(set(only) - known):
        raise ValueError(f"{', '.join(unknown)}: no section and no rule has this name; --list shows them")
    return [
        (section, rule) for section, rule in every if not only or {section.name, section.full_name(rule)} & set(only)
    ]


def ask(worker: Subject, rules: Sequence[tuple[Section, Rule]]) -> Iterator[Finding]:
    """Yield what is found, rule by rule."""
    for section, rule in rules:
        yield _tried(worker, section, rule)


def _tried(worker: Subject, section: Section, rule: Rule) -> Finding:
    began_s = time.monotonic()
    outcome, expected, seen = _outcome(worker, rule)
    seconds = round(time.monotonic() - began_s, 3)
    return Finding(section.full_name(rule), outcome, rule.says, section.where, expected, seen, seconds)


def _outcome(worker: Subject, rule: Rule) -> tuple[Outcome, str, str]:
    """Return the outcome, what was expected, and what was seen."""
    if rule.needs is not None and rule.needs not in worker.claims:
        return Outcome.NOT_CLAIMED, f"{rule.needs} is claimed", "it is not"
    try:
        rule.check(worker)
    except Unclaimed as unclaimed:
        return Outcome.NOT_CLAIMED, f"{unclaimed} is claimed", "it is not"
    except Missed as missed:
        return Outcome.FAILED, missed.expected, missed.seen
    except Refused as refused:
        return Outcome.FAILED, f"{refused.method} succeeds", str(refused)
    except Blocked as blocked:
        return Outcome.BLOCKED, "the rule can be tried", str(blocked)
    return Outcome.PASSED, "", ""
