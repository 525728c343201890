"""The stages of the Dockerfile: which instructions one of them stands on. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

FROM = re.compile(r"FROM (?P<base>\S+)(?: AS (?P<name>\S+))?$")
COPY_FROM = re.compile(r"COPY --from=(\S+) ")
ARG = re.compile(r"ARG (\w+)")


def instructions(dockerfile: str) -> Iterator[str]:
    """Yield the instructions, continued lines joined; comments and empty lines do not count."""
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    whole = ""
    for line in lines:
        whole += line
        if not line.endswith("\\"):
            yield whole
            whole = ""
        else:
            whole += "\n"


def split(dockerfile: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the instructions before the first stage, and those of each named stage with its FROM."""
    before: list[str] = []
    stages: dict[str, list[str]] = {}
    current = before
    for instruction in instructions(dockerfile):
        if found := FROM.match(instruction):
            current = stages.setdefault(found["name"] or instruction, [])
        current.append(instruction)
    return before, stages


def text_under(dockerfile: str, stage: str) -> str:
    """Return what a stage is made of: it, the stages that it builds on or copies from, and the arguments they name.

    Raises KeyError if there is no such stage.
    """
    before, stages = split(dockerfile)
    used = "\n".join(line for name in stages_under(stages, stage) for line in stages[name])
    arguments = [line for line in before if (found := ARG.match(line)) and re.search(rf"\b{found[1]}\b", used)]
    return "\n".join([*arguments, used])


def stages_under(stages: dict[str, list[str]], stage: str) -> list[str]:
    """Return a stage and all that it needs, each once, in the order of the file."""
    needed, waiting = set(), [stage]
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += [other for other in sources(stages[name]) if other in stages and other not in needed]
    return [name for name in stages if name in needed]


def sources(stage: list[str]) -> list[str]:
    """Return what a stage builds on and copies from, images outside the file among them."""
    found = [FROM.match(line) or COPY_FROM.match(line) for line in stage]
    return [match[1] for match in found if match]
