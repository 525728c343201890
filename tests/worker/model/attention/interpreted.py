"""Runs cases for our kernels under Triton's interpreter: names come in on stdin, errors go out on stdout as JSON.

A process of its own, because TRITON_INTERPRET decides for all kernels when triton is imported.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from dormouse_worker.common.host import Host
from dormouse_worker.model.attention.interface import AttentionShape, BackendSizes
from dormouse_worker.model.attention.triton_backend import TritonBackend
from dormouse_worker.model.attention.triton_launch import Splitting
from tests.gpu.attention_cases import error_of, independence_error, make_cases

INDEPENDENCE = "independence"
MODEL = "model:"  # an architecture follows
NUM_TOKENS = 4


def make_backend(sizes: BackendSizes) -> TritonBackend:
    """Return a backend that divides short contexts too; the interpreter multiplies no bfloat16."""
    return TritonBackend(sizes, Splitting(max_splits=4, min_tokens=32), widens=True)


def _run(name: str) -> str | None:
    device = torch.device("cpu")
    if name == INDEPENDENCE:
        return independence_error(make_backend, device)
    if name.startswith(MODEL):
        return _model_error(name.removeprefix(MODEL))
    return error_of({case.name: case for case in make_cases()}[name], make_backend, device)


def _model_error(architecture: str) -> str | None:
    """Compare the tokens of a tiny model, its prompts cut into chunks beside decoding, with transformers' own."""
    from dormouse_worker.common.settings import EngineSettings
    from dormouse_worker.model.device.cpu import CpuDevice
    from dormouse_worker.model.loader import load
    from dormouse_worker.model.testing import MAX_POSITIONS, reference_generate, write_tiny_model
    from tests.worker.model.test_parity import make_engine, run

    prompts = {"short": [3, 1, 4, 1, 5], "long": [i * i % 250 for i in range(30)]}
    with tempfile.TemporaryDirectory() as directory:
        path = write_tiny_model(Path(directory), architecture)
        expected = {name: reference_generate(path, prompt, NUM_TOKENS) for name, prompt in prompts.items()}
        model = load(EngineSettings(model=str(path), block_size=4), CpuDevice(Host()))
    layer, heads = model.cache_spec.layers[0], model.module.config.num_attention_heads
    shape = AttentionShape(heads, layer.num_kv_heads, layer.key_size, layer.value_size, layer.dtype, 4)
    sizes = BackendSizes((shape,), max_num_seqs=4, max_model_len=MAX_POSITIONS)
    actual = run(make_engine(model, tokens=9, backend=make_backend(sizes)), prompts, max_tokens=NUM_TOKENS)
    return None if actual == expected else f"{actual} is not {expected}"


def main() -> None:
    """Answer until stdin ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(_run(line.strip())), flush=True)


if __name__ == "__main__":
    main()
