"""Caches of keys and values of 8 bits beside one of the model's own bfloat16: perplexity, error, blocks, time.

Perplexity is of whole windows in our kernels, each token of which reads the cache, under the models of
`bench.quantized`. The error is of one layer's attention to random keys and values, of which two channels may stand out.
Blocks are those of an engine with a cache of one size. Attention is one layer's over a paged cache, all in turns; a
decoding sequence's layers are more than the processor's caches hold.
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
from dormouse_worker.common.settings import AUTO
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.cache_rows import INT8, MOST, plain_keys, plain_values, round_keys, round_values
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
CHANNELS = {  # by how much two of them are larger than the others, of keys and of values
    "channels alike": (1, 1),
    "two channels of keys 20 × as large": (20, 1),
    "two channels of keys and values 20 × as large": (20, 20),
}
CONTEXT, SIZE, UNCACHED_BYTES = 4096, 64, 192 << 20


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    use_threads(options)
    return [*_perplexities(options, console), *_errors(), *_blocks(), *_attention()]


def _perplexities(options: Options, console: Console) -> Iterator[Row]:
    trained = train(LARGE), library_text(), 512, 6
    small = train(Recipe()), library_text(), 2000, 2
    for name, (model, text, size, count) in {
        "11.6 M trained": trained,
        "model of make model": small,
        "SmolLM2-135M": (demo_model_dir(), documents(), 2000, 4),
    }.items():
        plain, *rounded = (_perplexity(model, text, (size, count), stored, options) for stored in (AUTO, *MOST))
        console.print(f"  {name}: {plain}, {rounded}", highlight=False)
        for stored, found in zip(MOST, rounded, strict=True):
            what = f"perplexity of {size} tokens, {name}, cache {stored} beside bf16"
            yield Row(what, found, "", plain, RatioAtMost(1.003) if stored == INT8 else None)


def _perplexity(model: Path, text: str, sizes: tuple[int, int], stored: str, options: Options) -> float:
    return perplexity(model, windows_of(model, text, *sizes), options, kv_cache_dtype=stored)


def _errors() -> Iterator[Row]:
    for name, factors in CHANNELS.items():
        found = [_error(stored, factors) for stored in MOST]
        for stored, error in zip(MOST, found, strict=True):
            yield Row(
                f"error of attention over {CONTEXT:,} tokens, {name}, cache {stored} beside int8", error, "", found[0]
            )


def _error(stored: str, factors: tuple[float, float]) -> float:
    """Return by how much what is attended to is off, beside its own size; two channels of keys and values stand out."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(count, SIZE, generator=generator) for count in (64, CONTEXT, CONTEXT))
    for rows, factor in zip((key, value), factors, strict=True):
        rows[:, 5:7] *= factor
    kept = plain_keys(round_keys(key, stored), stored, torch.float32)
    exact, ours = (
        (2 * query @ keys.T / SIZE**0.5).softmax(-1) @ values
        for keys, values in (
            (key, value),
            (kept, plain_values(round_values(value, stored), stored, torch.float32)),
        )
    )
    return float((ours - exact).norm() / exact.norm())


def _blocks() -> Iterator[Row]:
    for name, shape in HEADS.items():
        plain, *rounded = ((1 << 30) // _spec(shape, stored).block_bytes for stored in (AUTO, *MOST))
        for stored, count in zip(MOST, rounded, strict=True):
            what = f"blocks of a layer in 1 GiB, {name}, cache {stored} beside bf16"
            yield Row(what, count, "", plain, RatioAtLeast(1.9))


def _attention() -> Iterator[Row]:
    with torch.inference_mode():
        for heads, shape in HEADS.items():
            for name, sizes in PASSES.items():
                plain_s, *rounded = usual_of([_run(shape, *sizes, stored=each) for each in (AUTO, *MOST)])
                for stored, seconds in zip(MOST, rounded, strict=True):
                    what = f"attention over {CONTEXT:,} tokens, {name}, {heads}, cache {stored} beside bf16"
                    yield Row(what, 1e3 * seconds, "ms", 1e3 * plain_s, RatioAtMost(1 / 0.95))


def _spec(shape: tuple[int, int, int], stored: str) -> CacheSpec:
    _, num_kv_heads, size = shape
    return CacheSpec.of((LayerSpec(num_kv_heads, size, size, torch.bfloat16, stored),), BLOCK_SIZE)


def _run(shape: tuple[int, int, int], num_seqs: int, num_queries: int, *, stored: str) -> Run:
    """Return a function that attends in the next of several layers."""
    spec, num_blocks = _spec(shape, stored), num_seqs * CONTEXT // BLOCK_SIZE
    num_layers = max(1, UNCACHED_BYTES // (num_blocks * spec.block_bytes * (1 if stored == AUTO else 2)))
    layers = cycle([_filled(spec, num_blocks) for _ in range(num_layers)])
    query = torch.randn(num_seqs * num_queries, shape[0], shape[2]).bfloat16()
    plan = NativeBackend().plan(describe_pass(num_seqs, num_queries, CONTEXT), torch.device("cpu"))
    call = AttentionCall(0, shape[2] ** -0.5)
    return lambda: plan.attend(call, query, next(layers))


def _filled(spec: CacheSpec, num_blocks: int) -> LayerCache:
    pool, shape = KVCache(spec, num_blocks, None).layer(0), spec.layers[0]
    num_slots = num_blocks * spec.block_size
    key, value = (torch.randn(num_slots, shape.num_kv_heads, shape.key_size).bfloat16() for _ in range(2))
    pool.write(torch.arange(num_slots), key, value)
    return pool


if __name__ == "__main__":
    main("kv_cache", __doc__, measure)
