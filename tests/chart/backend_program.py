"""Runs in the worker's image, with tests/gpu/attention_cases.py: every backend that a processor can try, as JSON.

TRITON_INTERPRET must be set: then Triton's kernels are interpreted.
"""

from __future__ import annotations

import json

import torch
from triton import knobs

from dormouse_worker.model.attention.choose import BUILT_IN
from dormouse_worker.model.attention.interface import BackendSizes
from dormouse_worker.model.attention.machine import describe_machine
from dormouse_worker.model.attention.triton_backend import TritonBackend
from dormouse_worker.model.attention.triton_launch import Splitting
from dormouse_worker.native import triton_stub
from tests.gpu.attention_cases import error_of, make_cases, run_cases

INTERPRETED = ("head-size-16", "decoding-alone", "soft-cap-sinks-window", "bfloat16")  # the interpreter takes its time
CPU = torch.device("cpu")


def interpreted(sizes: BackendSizes) -> TritonBackend:
    """Return a backend that divides short contexts too; the interpreter multiplies no bfloat16."""
    return TritonBackend(sizes, Splitting(max_splits=4, min_tokens=32), widens=True)


def main() -> None:
    """Print for each backend how many cases held, and what is wrong with the others."""
    machine, cases = describe_machine(CPU), make_cases()
    results = [
        result
        for name, factory in BUILT_IN.items()
        if name != TritonBackend.name
        for result in run_cases(name, factory, machine, CPU, cases)
    ]
    tried = [(result.backend, result.case, result.error) for result in results if result.refusal is None]
    tried += [("triton", case.name, error_of(case, interpreted, CPU)) for case in cases if case.name in INTERPRETED]
    held = [backend for backend, _, error in tried if error is None]
    impl = knobs.build.impl
    print(
        json.dumps(
            {
                "held": {backend: held.count(backend) for backend in held},
                "wrong": [one for one in tried if one[2] is not None],
                "stub": impl("cuda_utils", str(triton_stub.driver_source()), "", [], [], []) if impl else "",
            }
        )
    )


if __name__ == "__main__":
    main()
