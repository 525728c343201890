"""One layer and one pass over a cache full of sequences, and what textbook attention says of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dormouse_worker.common.settings import AUTO
from dormouse_worker.model.attention.interface import (
    AttentionMetadata,
    AttentionShape,
)
from dormouse_worker.model.cache_rows import plain_keys, plain_values, round_keys, round_values
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache

Span = tuple[int, int]  # a sequence computes the positions [start, end) in this pass
MIXED: tuple[Span, ...] = ((20, 21), (0, 3), (3, 20), (64, 65), (150, 158))  # fresh, chunked, decoding
MIN_MODEL_LEN = 128


@dataclass(frozen=True)
class Case:
    """One layer and one pass."""

    name: str
    heads: tuple[int, int] = (4, 2)  # query heads, key heads
    sizes: tuple[int, int] = (16, 16)  # of a key, of a value
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int | None = None
    group_window: bool = False  # the window is the layer group's: what lies behind it belongs to somebody else
    soft_cap: float | None = None
    has_sinks: bool = False
    stored: str = AUTO  # int8, fp8 = a cache of 8 bits: what is expected is of keys and values after rounding
    spans: tuple[Span, ...] = MIXED
    seed: int = 0

    @property
    def model_len(self) -> int:
        """The longest sequence that the backend is made for; its tables are wider than those of most passes."""
        return max(MIN_MODEL_LEN, *(end for _, end in self.spans))

    @property
    def shape(self) -> AttentionShape:
        """What the layer asks of a backend."""
        return AttentionShape(
            num_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            key_size=self.sizes[0],
            value_size=self.sizes[1],
            dtype=self.dtype,
            block_size=self.block_size,
            window=self.window,
            has_soft_cap=self.soft_cap is not None,
            has_sinks=self.has_sinks,
            is_rounded=self.stored != AUTO,
        )


class World:
    """Sequences with random keys and values, scattered over a pool; every other slot of it holds a NaN."""

    def __init__(self, case: Case, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(case.seed)
        (num_heads, num_kv_heads), (key_size, value_size) = case.heads, case.sizes
        ends = [end for _, end in case.spans]
        num_blocks = sum(-(-end // case.block_size) for end in ends) + 3
        pool = [
            torch.full((num_blocks * case.block_size, num_kv_heads, size), float("nan"), dtype=case.dtype)
            for size in case.sizes
        ]
        stored = (_as_it_is, _as_it_is)
        if case.shape.is_rounded:
            stored = partial(round_keys, stored=case.stored), partial(round_values, stored=case.stored)
        pool = [store(rows) for store, rows in zip(stored, pool, strict=True)]
        blocks = iter(torch.randperm(num_blocks, generator=generator).tolist())
        tables = [[next(blocks) for _ in range(-(-end // case.block_size))] for end in ends]
        sinks = torch.randn(num_heads, generator=generator) if case.has_sinks else None
        self.call = AttentionCall(
            0, key_size**-0.5, case.window, case.soft_cap, None if sinks is None else sinks.to(device)
        )
        queries, keys, values, expected = [], [], [], []
        for (start, end), table in zip(case.spans, tables, strict=True):
            query = torch.randn(end - start, num_heads, key_size, generator=generator).to(case.dtype)
            key = torch.randn(end, num_kv_heads, key_size, generator=generator).to(case.dtype)
            value = torch.randn(end, num_kv_heads, value_size, generator=generator).to(case.dtype)
            first = _first_seen(case, start)
            slots = [table[p // case.block_size] * case.block_size + p % case.block_size for p in range(end)]
            for into, rows, store in zip(pool, (key, value), stored, strict=True):
                into[slots[first:start]] = store(rows)[first:start]
            queries.append(query)
            keys.append(key[start:])
            values.append(value[start:])
            if case.shape.is_rounded:
                key, value = (store(rows) for store, rows in zip(stored, (key, value), strict=True))
                key = plain_keys(key, case.stored, torch.float32)
                value = plain_values(value, case.stored, torch.float32)
            expected.append(textbook(self.call, query, key, value, sinks))
        self.metadata = _describe(case, tables, next(blocks))
        self.layer = LayerCache(*(part.to(device) for part in pool), case.stored)
        # As models bring them: the heads of all rows behind one another, [1, H, T, D] seen as [T, H, D].
        self.query, self.key, self.value = (
            torch.cat(rows).to(device).transpose(0, 1).contiguous().transpose(0, 1) for rows in (queries, keys, values)
        )
        self.expected = torch.cat(expected).to(device)
        written = [pool[0].clone(), pool[1].clone()]
        for into, rows, store in zip(written, (keys, values), stored, strict=True):
            into[torch.from_numpy(self.metadata.slot_mapping)] = store(torch.cat(rows))
        self._written = [part.to(device) for part in written]

    def check_that_nothing_else_was_written(self) -> None:
        """Raise AssertionError if a slot holds something else than it must."""
        for actual, expected in zip((self.layer.key, self.layer.value), self._written, strict=True):
            torch.testing.assert_close(actual, expected, atol=0, rtol=0, equal_nan=True)


def _as_it_is(rows: torch.Tensor) -> torch.Tensor:
    return rows


def _first_seen(case: Case, start: int) -> int:
    """Return where the first block begins that the group's window reaches into: the sequence has none before."""
    if not case.group_window or case.window is None:
        return 0
    return max(0, start - case.window + 1) // case.block_size * case.block_size


def _describe(case: Case, tables: list[list[int]], unused: int) -> AttentionMetadata:
    """Behind a group's window stands a block of which nothing may be read."""
    size = case.block_size
    starts, ends = np.array(case.spans).T
    block_tables = np.zeros((len(tables), max(map(len, tables))), dtype=np.int64)
    for row, (table, start) in enumerate(zip(tables, starts, strict=True)):
        block_tables[row, : len(table)] = table
        block_tables[row, : _first_seen(case, start) // size] = unused
    rows = [(n, position) for n, (start, end) in enumerate(case.spans) for position in range(start, end)]
    return AttentionMetadata(
        query_starts=np.concatenate([[0], np.cumsum(ends - starts)]),
        context_lens=ends,
        block_tables=block_tables,
        slot_mapping=np.array([tables[n][p // size] * size + p % size for n, p in rows]),
        positions=np.array([position for _, position in rows]),
        block_size=size,
        window=case.window if case.group_window else None,
    )


def textbook(
    call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Attend from the last positions, query [Q, Hq, D], to key [L, Hkv, D] by the formula, in float64."""
    num_queries, num_heads = query.shape[:2]
    key, value = (rows.double().repeat_interleave(num_heads // rows.shape[1], dim=1) for rows in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * call.scale
    if call.soft_cap is not None:
        scores = call.soft_cap * torch.tanh(scores / call.soft_cap)
    distance = torch.arange(len(key) - num_queries, len(key))[:, None] - torch.arange(len(key))
    is_seen = (distance >= 0) & (distance < (call.window or len(key)))
    scores = scores.masked_fill(~is_seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, num_queries, 1)], dim=-1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(key)], value)
