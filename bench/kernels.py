"""Our kernels for processors beside torch's operations, and beside what the machine's cores can do at all.

Linear layers by the rows that share the weights, with more copies of a weight than the caches hold: in tokens of one
sequence everything is read from memory, in a large batch everything is multiplied. Attention of one layer over a paged
cache. Every figure is a median of one run, with both sides in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import torch
from rich.console import Console
from torch.nn.functional import linear

from bench.limits import Run, measure_read_gb_per_s, usual_of
from bench.options import Options, main
from bench.results import Row
from dormouse_worker.model.attention.interface import AttentionBackend, AttentionMetadata
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels, Missing, load_kernels

SHAPES = ((768, 4096), (896, 9728), (4096, 4096))  # inputs, outputs: of the small model, of 0.5 B, of 7 B parameters
ROWS = (1, 4, 16, 64, 512)
UNCACHED_BYTES = 256 << 20  # of copies of a weight together: more than a core's share of any cache
HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 12, 4, 64, 16
PASSES = {  # sequences, tokens of each in the pass, context of each after it
    "decoding, 64 sequences of 512 tokens": (64, 1, 512),
    "decoding, one sequence of 4,096 tokens": (1, 1, 4096),
    "a prompt of 512 tokens": (1, 512, 512),
    "a chunk of 512 tokens behind 3,584": (1, 512, 4096),
}


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    if options.threads:
        torch.set_num_threads(options.threads)
    kernels = load_kernels()
    if isinstance(kernels, Missing):
        console.print(f"  no kernels: {kernels.reason}")
        return []
    kernels.set_num_threads(torch.get_num_threads())
    console.print(f"  {kernels!r}", highlight=False)
    with torch.inference_mode():
        rows = [Row("limit: reading memory", measure_read_gb_per_s(), "GB/s")]
        for columns, outputs in SHAPES:
            rows += _measure_products(kernels, columns, outputs)
        rows += [_measure_attention(what, *sizes) for what, sizes in PASSES.items()]
    return rows


def _measure_products(kernels: Kernels, columns: int, outputs: int) -> list[Row]:
    num_copies = max(2, UNCACHED_BYTES // (columns * outputs * 2))
    halves = [torch.randn(outputs, columns, dtype=torch.bfloat16) for _ in range(num_copies)]
    singles = [weight.float() for weight in halves[: num_copies // 2]]
    rows = []
    for num_rows in ROWS:
        single = torch.randn(num_rows, columns)
        half, out = single.bfloat16(), torch.empty(num_rows, outputs)
        next_half, next_single, next_ours = cycle(halves), cycle(singles), cycle(halves)
        sizes = {"num_rows": num_rows, "columns": columns, "num_outputs": outputs}

        def ours(out: torch.Tensor = out, single: torch.Tensor = single, sizes: dict[str, int] = sizes) -> None:
            weight = abi.Linear(next(next_ours).data_ptr(), None)  # noqa: B023  called within this round
            kernels.multiply(abi.BFLOAT16, single.data_ptr(), weight, out.data_ptr(), **sizes)

        in_half: Run = lambda half=half: linear(half, next(next_half))  # type: ignore[misc]  # noqa: B023, E731
        in_single: Run = lambda single=single: linear(single, next(next_single))  # type: ignore[misc]  # noqa: B023, E731
        ours_s, half_s, single_s = usual_of([ours, in_half, in_single])
        gflop = 2e-9 * num_rows * columns * outputs
        what = f"{columns} → {outputs}, {num_rows} rows"
        rows.append(Row(f"bfloat16 weights {what}", gflop / ours_s, "GFLOP/s", gflop / half_s))
        rows.append(Row(f"limit: torch in float32 {what}", gflop / single_s, "GFLOP/s"))
    return rows


def _measure_attention(what: str, num_seqs: int, num_queries: int, context: int) -> Row:
    metadata = describe_pass(num_seqs, num_queries, context)
    num_slots = num_seqs * context
    key, value = (torch.randn(num_slots, KV_HEADS, HEAD_SIZE).bfloat16() for _ in range(2))
    layer = LayerCache(key, value)
    query = torch.randn(num_seqs * num_queries, HEADS, HEAD_SIZE).bfloat16()
    call = AttentionCall(0, HEAD_SIZE**-0.5)
    backends: Sequence[AttentionBackend] = (NativeBackend(), SdpaBackend())
    plans = [backend.plan(metadata, torch.device("cpu")) for backend in backends]
    native_s, reference_s = usual_of([lambda plan=plan: plan.attend(call, query, layer) for plan in plans])  # type: ignore[misc]
    return Row(f"attention, {what}", 1e3 * native_s, "ms", 1e3 * reference_s)


def describe_pass(num_seqs: int, num_queries: int, context: int) -> AttentionMetadata:
    """Return sequences whose blocks lie scattered."""
    num_blocks = -(-context // BLOCK_SIZE)
    tables = np.random.default_rng(1).permutation(num_seqs * num_blocks).reshape(num_seqs, num_blocks)
    positions = np.tile(np.arange(context - num_queries, context), num_seqs)
    sequences = np.repeat(np.arange(num_seqs), num_queries)
    return AttentionMetadata(
        query_starts=np.arange(num_seqs + 1) * num_queries,
        context_lens=np.full(num_seqs, context),
        block_tables=tables,
        slot_mapping=tables[sequences, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
        positions=positions,
        block_size=BLOCK_SIZE,
    )


if __name__ == "__main__":
    main("kernels", __doc__, measure)
