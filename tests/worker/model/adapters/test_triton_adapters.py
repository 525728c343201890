"""The kernels for adapters: which rows share a tile, what they add, and what is compiled for real devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dormouse_worker.model.adapters.choose import choose_adder, has_kernels
from dormouse_worker.model.adapters.rows import TorchAdder
from dormouse_worker.model.adapters.triton_adapters import group_rows
from dormouse_worker.model.attention.machine import Machine
from tests.worker.model.adapters.triton_cases import CASES, CPU
from tools.bootstrap import cache_root

SMALLEST_SHARED_BYTES = 99 << 10  # of the devices with compute capability 8.6, 8.9 and 12.0
GPU = Machine(device_type="cuda", torch_version=(2, 9), capability=(9, 0), triton_version=(3, 6))


def run(module, **variables):
    child = subprocess.run(
        [sys.executable, "-m", f"tests.worker.model.adapters.{module}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


def test_rows_are_grouped_by_slot_into_tiles_of_sixteen():
    order, tiles = group_rows(np.array([1, -1, 0, *[1] * 17]), CPU)
    assert order.tolist() == [2, 0, *range(3, 20)]
    assert tiles.tolist() == [[0, 0, 1], [1, 1, 16], [1, 17, 2]]


def test_a_pass_in_which_no_row_has_an_adapter_has_no_tiles():
    assert [len(each) for each in group_rows(np.array([-1, -1]), CPU)] == [0, 0]


@pytest.mark.timeout(600)  # a process that imports torch and triton, on a busy machine
def test_under_the_interpreter_they_add_what_torch_adds_and_a_row_has_the_same_bits_in_any_batch():
    assert run("interpreted", TRITON_INTERPRET="1") == {case.name: "" for case in CASES}


@pytest.mark.timeout(600)
def test_they_compile_for_real_devices_and_fit_into_them():
    results = run("compiled", TRITON_CACHE_DIR=str(cache_root() / "triton"))
    assert {(each["kernel"], each["capability"]) for each in results} == {
        (kernel, capability) for kernel in ("shrink", "expand") for capability in (80, 90, 100)
    }
    for each in results:
        assert each["shared_bytes"] <= SMALLEST_SHARED_BYTES, each
        assert each["tensor_cores"] or each["case"].startswith("float32"), each


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (GPU, True),
        (replace(GPU, capability=(7, 5)), False),
        (replace(GPU, triton_version=None), False),
        (replace(GPU, triton_version=(3, 4)), False),
        (replace(GPU, device_type="cpu", capability=None), False),
    ],
)
def test_they_add_where_they_attend(machine, expected):
    assert has_kernels(machine) is expected


def test_on_a_processor_torch_adds():
    assert isinstance(choose_adder(CPU)(np.array([0])), TorchAdder)
