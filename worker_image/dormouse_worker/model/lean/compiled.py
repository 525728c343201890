"""A decoder's layers compiled by torch for the batch sizes that are listed; of all others, operation by operation.

What lies between two attentions becomes a few fused kernels. Layers of the same shape share them, as weights are
inputs: compiling takes as long for one layer as for a hundred. All is compiled before the worker serves, with zeros; a
request never waits for the compiler: what would have to be compiled anew then is computed without it.

    rows of the pass | listed: make_heads (compiled) -> attention -> finish (compiled)
                     | others: make_heads            -> attention -> finish

A prompt's pass ends with fewer rows than it began: its last layer's `finish` has those whose logits are wanted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.lean.decoder import EAGER, Angles, Heads, LayerParts, LeanDecoder, angles_of
from dormouse_worker.model.lean.parts import Layer
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.native.triton_stub import offer

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch's own; what is compiled lies there under its content's digest
IN_PROFILE_CACHE = "compiled"
FOLDER_MODE = 0o700  # what lies there is executed

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What compiling took."""

    sizes: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        return f"layers compiled for {', '.join(map(str, self.sizes))} rows in {self.seconds:.1f} s"


class _Choice:
    """The compiled functions for listed numbers of rows, the others for the rest."""

    def __init__(self, compiled: LayerParts, sizes: Collection[int]) -> None:
        self._compiled, self._sizes = compiled, frozenset(sizes)

    def make_heads(self, layer: Layer, hidden: torch.Tensor, angles: Angles) -> Heads:
        parts = self._compiled if len(hidden) in self._sizes else EAGER
        return parts.make_heads(layer, hidden, angles)

    def finish(self, layer: Layer, hidden: torch.Tensor, attended: torch.Tensor, group: Communicator) -> torch.Tensor:
        if len(hidden) not in self._sizes:
            return EAGER.finish(layer, hidden, attended, group)
        return self._compiled.finish(layer, hidden, attended, ALONE)  # T is 1: the group is asked nothing


def compile_layers(
    decoder: LeanDecoder, sizes: Sequence[int], cache: str, *, compile_with: Compile | None = None
) -> tuple[LeanDecoder, CompileReport]:
    """Return the decoder with compiled layers, and what that took; nothing else may compile or run meanwhile.

    `cache` is a directory that keeps what was compiled for the next start, unless torch was told of another; "" =
    torch's own. Raises InvalidSettings with what the compiler said, MemoryError and torch's OutOfMemoryError as they
    are. A rank alone in its stage only: what ranks exchange within a layer is not compiled.
    """
    started_s = time.monotonic()
    if cache:
        _keep_in(Path(cache) / IN_PROFILE_CACHE)
    if decoder.rotary.inv_freq.is_cuda:
        offer()
    wanted = tuple(sorted(set(sizes)))
    compiler = compile_with or (lambda function: torch.compile(function, fullgraph=True, dynamic=False))
    compiled = LayerParts(compiler(EAGER.make_heads), compiler(EAGER.finish))
    num_variants = len(wanted) * len({_shape(layer) for layer in decoder.layers})
    try:
        with torch.inference_mode(), _compiler_for(num_variants):
            for size in wanted:
                _run_all(decoder, compiled, size)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the compiler's, and those of the compilers that it calls
        reason = _first_line(error)
        raise InvalidSettings(f"compile_sizes: torch's compiler failed: {reason}; leave it empty") from error
    choice = _Choice(LayerParts(_only_run(compiled.make_heads), _only_run(compiled.finish)), wanted)
    parts = LayerParts(choice.make_heads, choice.finish, wanted)
    return replace(decoder, parts=parts), CompileReport(wanted, time.monotonic() - started_s)


def _keep_in(folder: Path) -> None:
    """Let torch keep what it compiles there; where that is not possible, a line in the log says so."""
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("what is compiled is not kept: %s", error)
    else:
        os.environ.setdefault(CACHE_VARIABLE, str(folder))


@contextmanager
def _compiler_for(num_variants: int) -> Iterator[None]:
    """Let torch compile so many further variants of a function in the block, and end its helpers after it.

    Imports the compiler: seconds, and memory that workers without it do not need.
    """
    from torch._dynamo import config
    from torch._inductor.async_compile import shutdown_compile_workers

    limits = ("recompile_limit", "accumulated_recompile_limit")
    try:
        with config.patch({name: getattr(config, name) + num_variants for name in limits}):
            yield
    finally:
        shutdown_compile_workers()


def _only_run(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs what was compiled, and compiles nothing more."""
    from torch import _dynamo

    run: Callable[..., Any] = _dynamo.run(compiled)
    return run


def _run_all(decoder: LeanDecoder, parts: LayerParts, size: int) -> None:
    """Compute every layer once, with zeros in the place of attention."""
    first = decoder.layers[0]
    hidden = first.mlp.norm.weight.new_zeros(size, len(first.mlp.norm.weight))
    angles = angles_of(decoder.rotary, torch.zeros(size, dtype=torch.long, device=hidden.device), hidden.dtype)
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
