"""The stand-in worker, as it is or with a line changed, and what the conformance kit finds of it."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dormouse_api.capabilities import Capability
from dormouse_api.names import Role
from dormouse_api.testing_tickets import POD_UID, book, knows
from dormouse_conformance.checks import SECTIONS
from dormouse_conformance.run import Finding, Outcome, ask, chosen
from dormouse_conformance.subject import Subject, Target
from tests.conformance.mutants import Mutant

PATIENCE_S = 5.0  # what hangs costs as much; everything else takes some hundredths of it
FOLDER = Path(__file__).with_name("stand_in")


@contextmanager
def stand_in(mutant: Mutant | None = None) -> Iterator[Any]:
    """Yield the stand-in's package, with the mutant's line in it."""
    with TemporaryDirectory() as folder:
        name = f"stand_in_{Path(folder).name}"
        copy = shutil.copytree(FOLDER, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            _change(copy, mutant)
        sys.path.insert(0, folder)
        try:
            yield importlib.import_module(name)
        finally:
            sys.path.remove(folder)


def _change(folder: Path, mutant: Mutant) -> None:
    texts = {path: path.read_text("utf-8") for path in folder.glob("*.py")}
    places = [path for path, text in texts.items() for _ in range(text.count(mutant.line))]
    assert len(places) == 1, f"this stands {len(places)} times in the stand-in: {mutant.line}"
    places[0].write_text(texts[places[0]].replace(mutant.line, mutant.instead), "utf-8")


@contextmanager
def served(
    mutant: Mutant | None = None, claims: frozenset[Capability] = frozenset(Capability), pod_uid: str = POD_UID
) -> Iterator[Target]:
    """Serve a stand-in, of the mutant if there is one."""
    with stand_in(mutant) as package:
        worker = package.Worker(knows(Role.OPERATOR, Role.GATEWAY, audience=pod_uid), pod_uid, claims)
        server, port = package.serve(worker)
        try:
            yield target(port, port, PATIENCE_S)
        finally:
            package.stop(worker, server)


def target(port: int, control_port: int, patience_s: float) -> Target:
    """Return how the kit reaches a worker of tests."""
    addresses = f"127.0.0.1:{port}", f"127.0.0.1:{control_port}"
    return Target(*addresses, POD_UID, book(Role.OPERATOR), book(Role.GATEWAY), patience_s)


def findings(where: Target, only: Sequence[str] = ()) -> list[Finding]:
    """Return what the kit finds."""
    subject = Subject(where)
    try:
        subject.meet(None)
        return list(ask(subject, chosen(SECTIONS, only)))
    finally:
        subject.close()


def outcomes(found: Sequence[Finding], outcome: Outcome) -> dict[str, str]:
    """Return the rules of an outcome, and what was seen of each."""
    return {one.rule: f"expected {one.expected}; saw {one.seen}" for one in found if one.outcome is outcome}
