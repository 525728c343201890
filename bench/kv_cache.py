"""A cache of keys and values of 8 bits beside one of the model's own bfloat16: perplexity, blocks, attention's time.

Perplexity is of whole windows in our kernels, each token of which reads the cache, under the models of
`bench.quantized`. Blocks are those of an engine with a cache of one size. Attention is one
layer's over a paged cache, both in turns; a decoding sequence's layers are more than the processor's caches hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import torch
from rich.console import Console

from bench.kernels import BLOCK_SIZE, describe_pass
from bench.limits import Run, use_threads, usual_of
from bench.options import Options, main
from bench.quantized import LARGE, documents, library_text, perplexity, windows_of
from bench.results import RatioAtLeast, RatioAtMost, Row
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import CacheSpec, KVCache, LayerCache, LayerSpec
from tools.demo_model import demo_model_dir
from tools.train_model import Recipe
from tools.train_model import make as train

HEADS = {"12 heads of 64 on 4": (12, 4, 64), "14 heads of 64 on 2": (14, 2, 64), "32 heads of 128 on 8": (32, 8, 128)}
PASSES = {  # sequences, tokens of each in the pass; 4,096 tokens of context each
    "one sequence decoding": (1, 1),
    "8 sequences decoding": (8, 1),
    "a chunk of 512 tokens": (1, 512),
}
CONTEXT, UNCACHED_BYTES = 4096, 192 << 20


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    use_threads(options)
    return [*_perplexities(options, console), *_blocks(), *_attention()]


def _perplexities(options: Options, console: Console) -> Iterator[Row]:
    trained = train(LARGE), library_text(), 512, 6
    small = train(Recipe()), library_text(), 2000, 2
    for name, (model, text, size, count) in {
        "11.6 M trained": trained,
        "model of make model": small,
        "SmolLM2-135M": (demo_model_dir(), documents(), 2000, 4),
    }.items():
        found = [_perplexity(model, text, (size, count), dtype, options) for dtype in ("auto", "int8")]
        console.print(f"  {name}: {found}", highlight=False)
        what = f"perplexity of {size} tokens, {name}, cache int8 beside bf16"
        yield Row(what, found[1], "", found[0], RatioAtMost(1.003))


def _perplexity(model: Path, text: str, sizes: tuple[int, int], dtype: str, options: Options) -> float:
    return perplexity(model, windows_of(model, text, *sizes), options, kv_cache_dtype=dtype)


def _blocks() -> Iterator[Row]:
    for name, (_, num_kv_heads, size) in HEADS.items():
        sizes = [
            CacheSpec.of((LayerSpec(num_kv_heads, size, size, torch.bfloat16, is_rounded),), BLOCK_SIZE).block_bytes
            for is_rounded in (False, True)
        ]
        plain, rounded = ((1 << 30) // num_bytes for num_bytes in sizes)
        yield Row(f"blocks of a layer in 1 GiB, {name}, cache int8 beside bf16", rounded, "", plain, RatioAtLeast(1.9))


def _attention() -> Iterator[Row]:
    with torch.inference_mode():
        for heads, shape in HEADS.items():
            for name, sizes in PASSES.items():
                plain_s, rounded_s = usual_of([_run(shape, *sizes, is_rounded=each) for each in (False, True)])
                what = f"attention over {CONTEXT:,} tokens, {name}, {heads}, cache int8 beside bf16"
                yield Row(what, 1e3 * rounded_s, "ms", 1e3 * plain_s, RatioAtMost(1 / 0.95))


def _run(shape: tuple[int, int, int], num_seqs: int, num_queries: int, *, is_rounded: bool) -> Run:
    """Return a function that attends in the next of several layers."""
    num_heads, num_kv_heads, size = shape
    spec = CacheSpec.of((LayerSpec(num_kv_heads, size, size, torch.bfloat16, is_rounded),), BLOCK_SIZE)
    num_blocks = num_seqs * CONTEXT // BLOCK_SIZE
    num_layers = max(1, UNCACHED_BYTES // (num_blocks * spec.block_bytes * (2 if is_rounded else 1)))
    layers = cycle([_filled(spec, num_blocks) for _ in range(num_layers)])
    query = torch.randn(num_seqs * num_queries, num_heads, size).bfloat16()
    plan = NativeBackend().plan(describe_pass(num_seqs, num_queries, CONTEXT), torch.device("cpu"))
    call = AttentionCall(0, size**-0.5)
    return lambda: plan.attend(call, query, next(layers))


def _filled(spec: CacheSpec, num_blocks: int) -> LayerCache:
    pool, shape = KVCache(spec, num_blocks, None).layer(0), spec.layers[0]
    num_slots = num_blocks * spec.block_size
    key, value = (torch.randn(num_slots, shape.num_kv_heads, shape.key_size).bfloat16() for _ in range(2))
    pool.write(torch.arange(num_slots), key, value)
    return pool


if __name__ == "__main__":
    main("kv_cache", __doc__, measure)
