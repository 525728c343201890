"""Compiles our kernels for CUDA devices as a launch would, without one, and prints what came out as JSON.

A process of its own: Triton compiles below TRITON_CACHE_DIR, and finds again what it made of the same source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dormouse_worker.model.attention import triton_kernels
from dormouse_worker.model.attention.tiles import choose_queries_per_tile
from dormouse_worker.model.attention.triton_backend import SPLITTING, TritonBackend
from dormouse_worker.model.attention.triton_launch import Launcher, padded
from dormouse_worker.model.cache_rows import MOST
from tests.gpu.attention_cases import sizes_of
from tests.gpu.attention_world import Case, World

POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int8: "*i8",
}
EIGHT_BITS = tuple(
    Case(f"{name} of 8 bits", heads=(32, 8), sizes=(128, 128), dtype=torch.bfloat16, stored=name) for name in MOST
)
CASES = (
    (80, Case("plain", heads=(32, 8), sizes=(128, 128), dtype=torch.bfloat16)),
    (90, Case("large-heads", heads=(8, 4), sizes=(256, 256), dtype=torch.bfloat16)),
    (89, Case("odd-heads", heads=(7, 1), sizes=(40, 40), dtype=torch.float16, soft_cap=3.0, has_sinks=True)),
    (86, Case("float32", heads=(4, 2), sizes=(48, 32), window=9)),
    *((capability, case) for capability in (80, 89, 90, 100) for case in EIGHT_BITS),
)


@dataclass
class Recorder:
    """Stands in for the kernels: keeps what each would be launched with."""

    launches: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return _Launchable(self, name)


@dataclass
class _Launchable:
    recorder: Recorder
    name: str

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(0 < side <= limit for side, limit in zip(grid, (2**31 - 1, 65535, 65535), strict=False)), grid
        return lambda *args, **options: self.recorder.launches.append((self.name, args, options))


def compile_launch(kernel: Any, capability: int, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Compile a kernel for what it would be launched with; `options` is emptied of what is not compiled in."""
    launch = {key: options.pop(key) for key in ("num_warps", "num_stages") if key in options}
    signature = {
        parameter: POINTERS[arg.dtype] if isinstance(arg, torch.Tensor) else "fp32" if isinstance(arg, float) else "i32"
        for parameter, arg in zip(kernel.arg_names, args, strict=False)
    }
    is_aligned = [isinstance(arg, torch.Tensor) for arg in args]
    source = ASTSource(
        fn=kernel,
        signature=signature | dict.fromkeys(options, "constexpr"),
        constexprs=options,
        attrs={(place,): [["tt.divisibility", 16]] for place, aligned in enumerate(is_aligned) if aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch)
    ptx = compiled.asm["ptx"]
    return {
        "kernel": kernel.__name__,
        "capability": capability,
        "shared_bytes": compiled.metadata.shared,
        "copies_ahead": "cp.async" in ptx,
        "tensor_cores": "mma" in ptx,
    }


def main() -> None:
    """Compile all launches of all cases."""
    results = []
    for capability, case in CASES:
        world, recorder = World(case, torch.device("cpu")), Recorder()
        backend = TritonBackend(sizes_of(case))
        queries = choose_queries_per_tile(case.shape.heads_per_kv_head, padded(case.sizes[0]) * case.dtype.itemsize)
        backend._launcher = Launcher(case.block_size, queries, SPLITTING, kernels=recorder)
        plan = backend.plan(world.metadata, torch.device("cpu"))
        plan.write(world.layer, world.key, world.value)
        plan.attend(world.call, world.query, world.layer)
        for name, *launch in recorder.launches:
            results.append({"case": case.name, **compile_launch(getattr(triton_kernels, name), capability, *launch)})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
