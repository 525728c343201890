"""The families of models by name: ours, and those of installed packages, found by entry point. Chooses none.

A package adds one by an entry point of the group `dormouse.tool_call_parsers` that points to a `ToolFamily`, or of
`dormouse.reasoning_parsers` that points to a `ReasoningFamily`; the entry point's name is the family's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.front.answers.families import (
    HARMONY,
    REASONING_FAMILIES,
    TOOL_FAMILIES,
    ReasoningFamily,
    ToolFamily,
)

TOOLS_GROUP, REASONING_GROUP = "dormouse.tool_call_parsers", "dormouse.reasoning_parsers"
_OTHERS = frozenset({"", "auto", "none", HARMONY})  # names that mean something else
Family = TypeVar("Family", ToolFamily, ReasoningFamily)


@dataclass(frozen=True, slots=True)
class Families:
    """Every family that answers may be read by, by name."""

    tools: Mapping[str, ToolFamily]
    reasoning: Mapping[str, ReasoningFamily]

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Return the names that a request may say, of which "" leaves it to the model."""
        return ("", *self.tools, HARMONY)

    @property
    def reasoning_names(self) -> tuple[str, ...]:
        """Return the same for what a model thinks."""
        return ("", *self.reasoning, HARMONY)


BUILT_IN = Families(TOOL_FAMILIES, REASONING_FAMILIES)


def installed_families(
    tools: Iterable[EntryPoint] | None = None, reasoning: Iterable[EntryPoint] | None = None
) -> Families:
    """Return ours, and behind them those of the installed packages by name. Raises InvalidSettings naming a package."""
    return Families(
        _with(TOOL_FAMILIES, ToolFamily, entry_points(group=TOOLS_GROUP) if tools is None else tools),
        _with(
            REASONING_FAMILIES,
            ReasoningFamily,
            entry_points(group=REASONING_GROUP) if reasoning is None else reasoning,
        ),
    )


def _with(ours: Mapping[str, Family], kind: type[Family], entries: Iterable[EntryPoint]) -> Mapping[str, Family]:
    """Return these families and those of the entry points. A name that is taken is refused: order must not choose."""
    found = dict(ours)
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.name in found or entry.name in _OTHERS:
            raise InvalidSettings(f"{_what(entry)}: the name is taken; rename the entry point or uninstall the package")
        found[entry.name] = _loaded(entry, kind)
    return found


def _loaded(entry: EntryPoint, kind: type[Family]) -> Family:
    try:
        family = entry.load()
    except Exception as error:  # whatever a foreign package raises
        raise InvalidSettings(
            f"{_what(entry)}: loading {entry.value} fails: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(family, kind) or family.name != entry.name:
        raise InvalidSettings(f"{_what(entry)}: {entry.value} is no {kind.__name__} of this name")
    return family


def _what(entry: EntryPoint) -> str:
    origin = "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return f"family {entry.name!r} of {origin}"
