"""docs/reference/programs.md: flags of worker and gateway, variables of operator and gateway, from the programs.

Variables are described where they are read: by the comment of their field in the class `Settings`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dormouse_gateway.settings as gateway
import dormouse_operator.settings as operator
from dormouse_gateway.__main__ import command_line as gateway_flags
from dormouse_worker.front.flags.settings import command_line as worker_flags
from tools.pages.tables import code, escaped, page, table

_VARIABLE = r"(?:DORMOUSE|OTEL)_[A-Z0-9_]+"
_BEGINNING = re.compile(rf"^((?:{_VARIABLE}(?:, )?)+)[:,]?\s*(.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the environment."""

    name: str
    field: str  # of the class Settings
    what: str


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment of the class Settings, and the fields that it is about."""

    text: str
    fields: tuple[str, ...]


def variables(module: Any) -> list[Variable]:
    """Return the described variables of a program's settings."""
    found = []
    for comment in _comments(Path(module.__file__).read_text("utf-8")):
        if beginning := _BEGINNING.match(comment.text):
            names = re.findall(_VARIABLE, beginning[1])
            fields = comment.fields if len(comment.fields) == len(names) else comment.fields[:1] * len(names)
            found += [Variable(name, field, beginning[2]) for name, field in zip(names, fields, strict=True)]
    return found


def read_by(module: Any) -> set[str]:
    """Return the variables that a program's settings read, as their source says."""
    source = Path(module.__file__).read_text("utf-8")
    whole = set(re.findall(r'"(DORMOUSE_[A-Z0-9_]+)"', source))
    return whole | {f"DORMOUSE_{name}" for name in re.findall(r'\(env, "([A-Z0-9_]+)"', source)}


def _comments(source: str) -> Iterator[Comment]:
    """Yield the comments of the class Settings: those before some fields, and those behind one."""
    (body,) = re.findall(r"^class Settings:.*?\n(.*?)(?=^    (?:@|def )|^\S)", source, re.DOTALL | re.MULTILINE)
    above: list[str] = []
    about: list[str] = []
    for line in body.splitlines():
        field = re.match(r"    (\w+):", line)
        words = line.partition("# ")[2]
        if line.startswith("    #"):
            if about:
                yield Comment(" ".join(above), tuple(about))
                above, about = [], []
            above.append(words)
        elif field and words:
            yield Comment(words, (field[1],))
        elif field:
            about.append(field[1])
        elif words:  # behind the field's type, which stands in lines of its own
            yield Comment(words, (about.pop(),))
    if above and about:
        yield Comment(" ".join(above), tuple(about))


def flags(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options of a parser, --help left out."""
    return [action for action in parser._actions if action.dest != "help"]  # noqa: SLF001  # argparse tells them nowhere else


def text() -> str:
    """Return the page."""
    worker = worker_flags()
    groups = [group for group in worker._action_groups if group._group_actions and group.title != "options"]  # noqa: SLF001
    parts = [f"### {_title(group)}\n\n{_flags(group._group_actions)}" for group in groups]  # noqa: SLF001
    return page(
        "Programs and their settings",
        _INTRODUCTION,
        "## dormouse-worker",
        escaped(worker.epilog or ""),
        *parts,
        f"## dormouse-gateway\n\n{_flags(flags(gateway_flags()))}",
        _variables(gateway, gateway.Settings()),
        "## dormouse-operator",
        _variables(operator, operator.parse_settings({})),
    )


def _title(group: Any) -> str:
    return str(group.title).capitalize()


def _flags(actions: list[argparse.Action]) -> str:
    return table(("Flag", "What"), ((code(_usage(one)), escaped(one.help or "")) for one in actions))


def _usage(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    return names if action.nargs == 0 else f"{names} {value}"


def _variables(module: Any, defaults: object) -> str:
    rows = (
        (code(one.name), code(_written(getattr(defaults, one.field))), escaped(one.what)) for one in variables(module)
    )
    return table(("Variable", "Default", "What"), rows)


def _written(value: object) -> str:
    """Return a default as a variable would hold it, "" for what is unset."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, int | str | Path) else ""


_INTRODUCTION = """The chart sets all of this; who runs the programs otherwise finds it here. A bad value ends a program
at its start, with code 2 (the operator: 1) and the name of the flag or variable. Sizes are bytes."""
