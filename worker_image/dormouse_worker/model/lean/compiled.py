"""A decoder's layers compiled by torch for the batch sizes that are listed; of all others, operation by operation.

What lies between two attentions becomes a few fused kernels. Layers of the same shape share them, as weights are
inputs: compiling takes as long for one layer as for a hundred. All is compiled before the worker serves, with zeros; a
request never waits for the compiler: what would have to be compiled anew then is computed without it.

    tokens of the pass | listed: make_heads (compiled) -> attention -> finish (compiled)
                       | others: make_heads            -> attention -> finish
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dormouse_worker.errors import InvalidSettings
from dormouse_worker.model.lean.decoder import EAGER, Angles, Heads, Layer, LayerParts, LeanDecoder
from dormouse_worker.model.parallel.communicator import ALONE, Communicator

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # what is compiled lies there under the digest of its content
IN_PROFILE_CACHE = "compiled"
FOLDER_MODE = 0o700

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What compiling took."""

    sizes: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        return f"layers compiled for {', '.join(map(str, self.sizes))} tokens in {self.seconds:.1f} s"


class _Choice:
    """The compiled functions for passes of a listed size, the others for the rest."""

    def __init__(self, compiled: LayerParts, sizes: Collection[int]) -> None:
        self._compiled, self._sizes = compiled, frozenset(sizes)

    def make_heads(self, layer: Layer, hidden: torch.Tensor, angles: Angles) -> Heads:
        parts = self._compiled if len(hidden) in self._sizes else EAGER
        return parts.make_heads(layer, hidden, angles)

    def finish(self, layer: Layer, hidden: torch.Tensor, attended: torch.Tensor, group: Communicator) -> torch.Tensor:
        parts = self._compiled if len(hidden) in self._sizes else EAGER
        return parts.finish(layer, hidden, attended, group)


def compile_layers(
    decoder: LeanDecoder, sizes: Sequence[int], cache: str, *, compile_with: Compile | None = None
) -> tuple[LeanDecoder, CompileReport]:
    """Return the decoder with compiled layers, and what that took; nothing else may compile or run meanwhile.

    `cache` is a directory that keeps what was compiled for the next start; "" = torch's own. Raises InvalidSettings
    with what the compiler said. A rank alone in its stage only: what ranks exchange within a layer is not compiled.
    """
    started_s = time.monotonic()
    if cache:
        _keep_in(Path(cache) / IN_PROFILE_CACHE)
    wanted = tuple(sorted(set(sizes)))
    compiler = compile_with or _torch_compiler(len(wanted) * len({_shape(layer) for layer in decoder.layers}))
    compiled = LayerParts(compiler(EAGER.make_heads), compiler(EAGER.finish))
    try:
        with torch.inference_mode(), torch.compiler.set_stance("default"):
            for size in reversed(wanted):
                _run_all(decoder, compiled, size)
    except Exception as error:  # the compiler's, and those of the compilers that it calls
        reason = _first_line(error)
        raise InvalidSettings(f"compile_sizes: torch's compiler failed: {reason}; leave it empty") from error
    torch.compiler.set_stance("eager_on_recompile")
    choice = _Choice(compiled, wanted)
    parts = LayerParts(choice.make_heads, choice.finish, wanted)
    return replace(decoder, parts=parts), CompileReport(wanted, time.monotonic() - started_s)


def _keep_in(folder: Path) -> None:
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    os.environ.setdefault(CACHE_VARIABLE, str(folder))


def _torch_compiler(num_variants: int) -> Compile:
    """Return torch's compiler, which may keep so many further variants of a function."""
    from torch._dynamo import config  # seconds, and memory that workers without it do not need

    config.recompile_limit += num_variants
    config.accumulated_recompile_limit += num_variants
    return lambda function: torch.compile(function, fullgraph=True, dynamic=False)


def _run_all(decoder: LeanDecoder, parts: LayerParts, size: int) -> None:
    """Compute every layer once, with zeros in the place of attention."""
    first = decoder.layers[0]
    hidden = first.attention.norm.weight.new_zeros(size, len(first.attention.norm.weight))
    angles = decoder.rotary.angles(torch.zeros(size, dtype=torch.long, device=hidden.device), hidden.dtype)
    for layer in decoder.layers:
        _, _, value = parts.make_heads(layer, hidden, angles)
        attended = value.new_zeros(size, layer.attention.output.weight.shape[1])
        parts.finish(layer, hidden, attended, ALONE)


def _shape(layer: Layer) -> tuple[object, ...]:
    """Return what makes a layer's code another's: sizes, and which parts it has."""
    attention, mlp = layer.attention, layer.mlp
    weights = (attention.qkv, attention.output, mlp.gate_up, mlp.down)
    return (
        *((linear.weight.shape, linear.bias is None) for linear in weights),
        attention.num_heads,
        attention.head_norms is None,
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
