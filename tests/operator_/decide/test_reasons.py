"""Every reason that a condition can have stands in the one list, with its remedy, and in the docs."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

import dormouse_operator.decide.conditions
import dormouse_operator.decide.pools.conditions
from dormouse_api.remedies import REMEDIES
from dormouse_operator.decide import adapter_sets, key_statuses, membership, offered_adapters, rejection
from dormouse_worker.common import errors

FOLDER = Path(dormouse_operator.decide.conditions.__file__).parent
POOL_FOLDER = Path(dormouse_operator.decide.pools.conditions.__file__).parent
ADAPTER_SETS, OFFERED = Path(adapter_sets.__file__), Path(offered_adapters.__file__)
KEYS, REJECTION = Path(key_statuses.__file__), Path(rejection.__file__)
ROOT = Path(__file__).resolve().parents[3]
RUNGS = {"holds", "not_yet", "failed", "unknown", "make"}


def reasons_in(path: Path, *, makers: Collection[str] = RUNGS, place: int = 1) -> set[str]:
    """Return the literal reasons that a condition's file gives, those behind its own names too.

    `makers` are the functions that it makes conditions with, `place` is that of the reason among their arguments.
    """
    tree = ast.parse(path.read_text())
    names = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers:
            found |= set(words(node.args[place], names))
    return found


def words(node: ast.expr, names: dict[str, str]) -> list[str]:
    """Return the words that an argument may be."""
    if isinstance(node, ast.IfExp):
        return words(node.body, names) + words(node.orelse, names)
    if isinstance(node, ast.Constant):
        return [node.value]
    return [names[node.id]] if isinstance(node, ast.Name) and node.id in names else []


POOL_FILES = sorted(path for path in POOL_FOLDER.glob("*.py") if path.stem != "__init__")
FILES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in {"__init__", "verdicts", "reasons", "all"})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_reason_of_a_condition_has_a_remedy(path):
    assert reasons_in(path), "the scan finds what the file says"
    assert reasons_in(path) <= REMEDIES.keys()


def test_each_reason_why_a_spec_is_not_accepted_has_a_remedy():
    """The condition repeats it."""
    found = reasons_in(REJECTION, makers={"Rejection"}, place=0)
    assert {"InvalidSpec", "PoolUnfit"} <= found <= REMEDIES.keys()


@pytest.mark.parametrize("path", POOL_FILES, ids=lambda path: path.stem)
def test_each_reason_of_a_pool_s_condition_has_a_remedy(path):
    assert reasons_in(path, makers={"Condition"}, place=2), "the scan finds what the file says"
    assert reasons_in(path, makers={"Condition"}, place=2) <= REMEDIES.keys()


def test_each_reason_of_an_inferenceadapter_s_condition_has_a_remedy():
    found = reasons_in(ADAPTER_SETS, makers={"Refusal"}, place=0) | reasons_in(OFFERED, makers={"Refusal"}, place=0)
    found |= reasons_in(OFFERED, makers={"Condition"}, place=2)
    assert {"NoAdapterPlace", "BaseNotFound", "AdapterFailed"} <= found
    assert found <= REMEDIES.keys()


def test_each_reason_of_an_inferencekey_s_condition_has_a_remedy():
    found = reasons_in(KEYS, makers={"Condition"}, place=2)
    assert {"Expired", "DigestTaken"} <= found <= REMEDIES.keys()


def test_each_reason_why_a_member_has_nothing_awake_has_a_remedy():
    reasons = {membership.POOL_NOT_FOUND, membership.WAITS_FOR_SLOT, membership.SLOT_TOO_SMALL, membership.ASLEEP}
    assert reasons <= REMEDIES.keys()


def test_each_failure_of_a_worker_has_a_remedy():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__subclasses__() == []]
    failures = {kind.__name__ for kind in kinds if issubclass(kind, errors.WorkerError)}
    assert failures <= REMEDIES.keys()


def test_the_docs_list_each_reason_with_its_remedy():
    text = (ROOT / "docs/reference/conditions.md").read_text()
    missing = [reason for reason, remedy in REMEDIES.items() if f"| `{reason}` | {remedy} |" not in text]
    assert missing == []
