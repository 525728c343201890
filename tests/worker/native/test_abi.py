"""The structures of Python and of the kernels lie in memory alike: a compiler checks every size and every offset."""

from __future__ import annotations

import ctypes
import inspect
import subprocess

import pytest

from dormouse_worker.native import abi
from dormouse_worker.native.build import COMPILERS, FLAGS, SOURCES

STRUCTURES = [
    kind
    for _, kind in inspect.getmembers(abi, inspect.isclass)
    if issubclass(kind, ctypes.Structure) and kind.__module__ == abi.__name__
]


def assertions(kind: type[ctypes.Structure]) -> list[str]:
    """Return C++ that compiles where the structure lies in memory as Python says."""
    name = f"Dm{kind.__name__}"
    offsets = ((field[0], getattr(kind, field[0]).offset) for field in kind._fields_)
    return [
        f"static_assert(sizeof({name}) == {ctypes.sizeof(kind)});",
        *(f"static_assert(offsetof({name}, {field}) == {offset});" for field, offset in offsets),
    ]


def compile_text(lines: list[str]) -> subprocess.CompletedProcess[str]:
    command = [COMPILERS[0], FLAGS[0], "-fsyntax-only", f"-I{SOURCES}", "-x", "c++", "-"]
    text = "\n".join(["#include <stddef.h>", '#include "abi.h"', *lines])
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_all_structures_lie_in_memory_as_the_kernels_read_them():
    assert len(STRUCTURES) >= 11
    compiled = compile_text([line for kind in STRUCTURES for line in assertions(kind)])
    assert compiled.returncode == 0, compiled.stderr


@pytest.mark.parametrize("kind", [abi.Batch, abi.Draw])
def test_a_field_in_another_place_does_not_compile(kind):
    swapped = type(kind.__name__, (ctypes.Structure,), {"_fields_": (kind._fields_[-1], *kind._fields_[:-1])})
    assert compile_text(assertions(swapped)).returncode != 0


def test_both_sides_are_of_one_version():
    assert compile_text([f"static_assert(DM_VERSION == {abi.VERSION});"]).returncode == 0
