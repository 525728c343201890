"""Compiles the kernels for adapters for CUDA devices as a launch would, without one; prints what came out as JSON."""

from __future__ import annotations

import json

import torch

from dormouse_worker.model.adapters import triton_kernels
from dormouse_worker.model.adapters.triton_adapters import TritonAdapters, group_rows
from tests.worker.model.adapters.triton_cases import CPU, Case, World
from tests.worker.model.attention.compiled import Recorder, compile_launch

CASES = (
    Case("bfloat16, rank 16", rank=16, num_inputs=4096, outputs=(4096, 1024, 1024), dtype=torch.bfloat16),
    Case("bfloat16, rank 64", rank=64, num_inputs=896, outputs=(4864, 4864), dtype=torch.bfloat16),
    Case("float32, rank 8", rank=8, num_inputs=896, outputs=(896,)),
)
CAPABILITIES = (80, 90, 100)


def main() -> None:
    """Compile all launches of all cases for all devices."""
    results = []
    for case in CASES:
        world, recorder = World(case), Recorder()
        TritonAdapters(group_rows(world.slots, CPU), kernels=recorder).add(world.out, world.inputs, world.lora)
        launches = {launch[0]: launch for launch in recorder.launches}.values()  # parts are launched alike
        for capability in CAPABILITIES:
            for name, args, options in launches:
                compiled = compile_launch(getattr(triton_kernels, name), capability, args, dict(options))
                results.append({"case": case.name, **compiled})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
