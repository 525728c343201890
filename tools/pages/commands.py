"""docs/reference/cli.md: every command of `dormouse` with its options, from the program itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer.main

from dormouse_cli.checks import RIGHTS
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.main import app
from tools.pages.tables import code, escaped, page, table


def commands() -> Mapping[str, Any]:
    """Return name → command, in the order of --help; those of a group by both names."""
    return dict(_below(typer.main.get_command(app), ""))


def _below(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _below(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def text() -> str:
    """Return the page."""
    codes = table(("Code", "Meaning"), ((str(one.value), escaped(one.meaning)) for one in ExitCode))
    parts = [_command(name, command) for name, command in commands().items()]
    rights = table(("Verb", "Resource", "Needed by"), ((one.verb, one.resource, one.commands) for one in RIGHTS))
    return page(
        "Command line", _INTRODUCTION, *parts, f"## Exit codes\n\n{codes}", f"## Rights\n\n{_RIGHTS}\n\n{rights}"
    )


def _command(name: str, command: Any) -> str:
    rows = ((code(_names(one)), code(_default(one)), escaped(_help(one))) for one in command.params)
    words = "\n\n".join(escaped(part) for part in (command.help or "").split("\n\n"))
    return f"## dormouse {name}\n\n{words}\n\n{table(('Option', 'Default', 'What'), rows)}"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).upper()
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    """Return the default, "" where there is none or the help has it."""
    value = parameter.default
    if value is None or callable(value) or parameter.required:
        return ""
    return (
        str(getattr(value, "value", value)).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
    )


def _help(parameter: Any) -> str:
    variable = getattr(parameter, "envvar", None)
    return f"{parameter.help or ''}{f' Variable: {variable}.' if variable else ''}"


_INTRODUCTION = """`dormouse` is also installed as `kubectl-dormouse`.
[Use the command line](../how-to/cli.md) shows what the commands are for."""
_RIGHTS = """An error names the missing right; `dormouse doctor` lists all of them. Other kinds (namespaces, nodes,
Deployments, leases, events) are read where you may."""
