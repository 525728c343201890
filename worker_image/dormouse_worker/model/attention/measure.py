"""Times the candidate backends on the device with the model's own shapes, and takes the fastest.

Done once, at the warm-up, before anything lies in the cache: the passes write zeros into it. Not done on CPU, which
has one candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from dormouse_worker.common.errors import Internal
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionBackend, AttentionMetadata, AttentionShape, BackendSizes
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache

REPEATS = 5
DECODE_CONTEXT_TOKENS = 2048  # of each decoding sequence, where that many fit


@dataclass(frozen=True, slots=True)
class Measurement:
    """What each candidate took for all passes together."""

    seconds: Mapping[str, float]
    failures: Mapping[str, str]  # name → the error that the device or the library answered

    @property
    def fastest(self) -> str:
        """Return the name of the fastest; of equally fast ones the first. Raises Internal if all failed."""
        if not self.seconds:
            failures = "; ".join(f"{name}: {error}" for name, error in self.failures.items())
            raise Internal(f"no attention backend computes on this device: {failures}")
        return min(self.seconds, key=lambda name: self.seconds[name])


def measure(
    runs: Mapping[str, Callable[[], None]],
    *,
    clock: Callable[[], float],
    synchronize: Callable[[], None],
) -> Measurement:
    """Time each candidate's run: once to compile, then the median of a few. One that raises is out, with its words."""
    seconds, failures = {}, {}
    for name, run in runs.items():
        try:
            _time(run, clock, synchronize)
            seconds[name] = median(_time(run, clock, synchronize) for _ in range(REPEATS))
        except Exception as error:  # noqa: BLE001  kernels fail to compile or launch in any way they like
            failures[name] = f"{type(error).__name__}: {error}"
    return Measurement(seconds, failures)


def _time(run: Callable[[], None], clock: Callable[[], float], synchronize: Callable[[], None]) -> float:
    synchronize()
    started_s = clock()
    run()
    synchronize()
    return clock() - started_s


def make_run(
    backend: AttentionBackend, shape: AttentionShape, layer: LayerCache, passes: tuple[AttentionMetadata, ...]
) -> Callable[[], None]:
    """Return what is timed: one layer of each pass, its plan and its write included."""
    device = layer.key.device
    call = AttentionCall(
        layer_idx=0,
        scale=shape.key_size**-0.5,
        window=shape.window,
        soft_cap=30.0 if shape.has_soft_cap else None,
        sinks=torch.zeros(shape.num_heads, device=device) if shape.has_sinks else None,
    )
    most = max(len(metadata.positions) for metadata in passes)
    query, key, value = (
        torch.zeros(most, heads, size, dtype=shape.dtype, device=device)
        for heads, size in (
            (shape.num_heads, shape.key_size),
            (shape.num_kv_heads, shape.key_size),
            (shape.num_kv_heads, shape.value_size),
        )
    )

    def run() -> None:
        for metadata in passes:
            rows = len(metadata.positions)
            plan = backend.plan(metadata, device)
            plan.write(layer, key[:rows], value[:rows])
            plan.attend(call, query[:rows], layer)

    return run


def trial_passes(sizes: BackendSizes, *, num_blocks: int, max_num_batched_tokens: int) -> tuple[AttentionMetadata, ...]:
    """Return what a server computes all day: every sequence decoding, and a full chunk of one prompt.

    Both weigh what they take. Tables go round the pool where it has fewer blocks than they ask for.
    """
    block_size = sizes.shapes[0].block_size
    decoding = np.full(sizes.max_num_seqs, min(sizes.max_model_len, DECODE_CONTEXT_TOKENS))
    prompt = np.array([min(sizes.max_model_len, max_num_batched_tokens)])
    return (
        _describe(decoding, np.ones_like(decoding), num_blocks, block_size),
        _describe(prompt, prompt, num_blocks, block_size),
    )


def _describe(context_lens: Ints, query_lens: Ints, num_blocks: int, block_size: int) -> AttentionMetadata:
    num_columns = -(-int(context_lens.max()) // block_size)
    tables = np.arange(len(context_lens) * num_columns).reshape(-1, num_columns) % num_blocks
    starts = np.concatenate([[0], np.cumsum(query_lens)])
    sequences = np.repeat(np.arange(len(query_lens)), query_lens)
    positions = np.arange(starts[-1]) - starts[sequences] + (context_lens - query_lens)[sequences]
    return AttentionMetadata(
        query_starts=starts,
        context_lens=context_lens,
        block_tables=tables,
        slot_mapping=tables[sequences, positions // block_size] * block_size + positions % block_size,
        positions=positions,
        block_size=block_size,
    )
