"""Check, offline, that requirements/*.txt belong together: the parts agree with dev.txt, and all fit pyproject.toml."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.bootstrap import ROOT

WHOLE = "dev"  # the lock that holds everything
PART_EXTRAS = {part: (part,) for part in ("operator", "gateway", "worker", "cli")}
EXTRAS = {**PART_EXTRAS, WHOLE: (*PART_EXTRAS, "dev")}  # lock → the extras it was resolved from; see tools/lock.sh
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?==(?P<version>[^\s;\\]+)")
HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
ADDRESS = re.compile(r"https?://|--(extra-)?index-url|--find-links")


@dataclass(frozen=True, slots=True)
class Pin:
    """One locked package."""

    version: str
    hashes: frozenset[str]


def parse(text: str) -> dict[str, Pin]:
    """Return name → pin of a lock file."""
    pins: dict[str, Pin] = {}
    for block in re.split(r"\n(?=\S)", text):
        if found := PIN.match(block):
            pins[canonicalize_name(found["name"])] = Pin(found["version"], frozenset(HASH.findall(block)))
    return pins


def problems(locks: Mapping[str, str], pyproject: Mapping[str, object]) -> Iterator[str]:
    """Yield what is wrong with the lock files (name → text), a sentence each."""
    pins = {name: parse(text) for name, text in locks.items()}
    for name, text in locks.items():
        if address := ADDRESS.search(text):
            yield f"requirements/{name}.txt holds an address ({address[0]}): no index belongs in the tree"
        yield from unpinned(name, pins[name])
        yield from differing(name, pins[name], pins[WHOLE])
        yield from unsatisfied(name, pins[name], pyproject)


def unpinned(name: str, pins: Mapping[str, Pin]) -> Iterator[str]:
    """Yield packages without a hash; a lock without any package is broken too."""
    if not pins:
        yield f"requirements/{name}.txt locks nothing"
    for package, pin in pins.items():
        if not pin.hashes:
            yield f"requirements/{name}.txt: {package} has no hash"


def differing(name: str, pins: Mapping[str, Pin], whole: Mapping[str, Pin]) -> Iterator[str]:
    """Yield packages that dev.txt locks otherwise, or not at all."""
    for package, pin in pins.items():
        if pin != whole.get(package):
            there = whole[package].version if package in whole else "absent"
            yield f"requirements/{name}.txt has {package} {pin.version}, {WHOLE}.txt has it {there}"


def unsatisfied(name: str, pins: Mapping[str, Pin], pyproject: Mapping[str, object]) -> Iterator[str]:
    """Yield requirements of pyproject.toml that the lock does not meet."""
    for requirement in required(name, pyproject):
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None or pin.version not in requirement.specifier:
            locked = pin.version if pin else "nothing"
            yield f"pyproject.toml asks for {requirement}, requirements/{name}.txt has {locked}: run make lock"


def required(name: str, pyproject: Mapping[str, object]) -> Iterator[Requirement]:
    """Yield what a lock must hold: the project's own dependencies and those of its extras."""
    project = pyproject["project"]
    assert isinstance(project, dict)
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in EXTRAS[name])]
    for group in groups:
        yield from map(Requirement, group)


def read_locks(root: Path) -> dict[str, str]:
    """Return name → text of the tree's lock files."""
    return {name: (root / "requirements" / f"{name}.txt").read_text() for name in EXTRAS}


def main() -> None:
    """Print every problem and fail if there is one."""
    found = list(problems(read_locks(ROOT), tomllib.loads((ROOT / "pyproject.toml").read_text())))
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
