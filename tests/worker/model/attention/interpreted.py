"""Runs cases for our kernels under Triton's interpreter: names come in on stdin, errors go out on stdout as JSON.

A process of its own, because TRITON_INTERPRET decides for all kernels when triton is imported.
"""

from __future__ import annotations

import json
import sys

import torch

from dormouse_worker.model.attention.interface import BackendSizes
from dormouse_worker.model.attention.triton_backend import TritonBackend
from dormouse_worker.model.attention.triton_launch import Splitting
from tests.gpu.attention_cases import error_of, independence_error, make_cases

INDEPENDENCE = "independence"


def make_backend(sizes: BackendSizes) -> TritonBackend:
    """Return a backend that divides short contexts too; the interpreter multiplies no bfloat16."""
    return TritonBackend(sizes, Splitting(max_splits=4, min_tokens=32), widens=True)


def _run(name: str) -> str | None:
    device = torch.device("cpu")
    if name == INDEPENDENCE:
        return independence_error(make_backend, device)
    return error_of({case.name: case for case in make_cases()}[name], make_backend, device)


def main() -> None:
    """Answer until stdin ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(_run(line.strip())), flush=True)


if __name__ == "__main__":
    main()
