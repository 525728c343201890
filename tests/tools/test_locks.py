"""The lock files belong together."""

from __future__ import annotations

import re
import tomllib

import pytest

from tools.bootstrap import ROOT
from tools.locks import EXTRAS, parse, problems, read_locks

HASH = "--hash=sha256:" + "a" * 64
PYPROJECT = {"project": {"dependencies": ["grpcio>=1.5"], "optional-dependencies": {x: [] for x in EXTRAS}}}


def locks(**changed: str) -> dict[str, str]:
    """Return lock files that agree, but for the changed ones."""
    return {**dict.fromkeys(EXTRAS, f"grpcio==1.6 \\\n    {HASH}\n    # via x\n"), **changed}


def test_the_tree_has_no_problem():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert list(problems(read_locks(ROOT), pyproject)) == []


def test_locks_that_agree_are_fine():
    assert list(problems(locks(), PYPROJECT)) == []


def test_names_are_compared_as_python_compares_them():
    assert set(parse(f"Typing_Extensions==1 \\\n    {HASH}\n")) == {"typing-extensions"}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"worker": f"grpcio==1.7 \\\n    {HASH}\n"}, "worker.txt has grpcio 1.7, dev.txt has it 1.6"),
        ({"worker": f"grpcio==1.6 \\\n    {HASH[:-1]}b\n"}, "worker.txt has grpcio 1.6, dev.txt has it 1.6"),
        ({"cli": f"grpcio==1.6 \\\n    {HASH}\nrich==1 \\\n    {HASH}\n"}, "rich 1, dev.txt has it absent"),
        ({"gateway": "grpcio==1.6\n"}, "gateway.txt: grpcio has no hash"),
        ({"gateway": ""}, "gateway.txt locks nothing"),
        ({"operator": f"--index-url https://x\ngrpcio==1.6 \\\n    {HASH}\n"}, "operator.txt holds an address"),
        (dict.fromkeys(EXTRAS, f"grpcio==1.4 \\\n    {HASH}\n"), "asks for grpcio>=1.5, .*has 1.4: run make lock"),
    ],
)
def test_each_disagreement_is_named(changed: dict[str, str], complaint: str):
    found = "\n".join(problems(locks(**changed), PYPROJECT))
    assert re.search(complaint, found), found
