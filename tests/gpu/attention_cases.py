"""What every attention backend must compute, as a table of cases and a check that runs on any device.

On CPU the tests run it, Triton's kernels under the interpreter; on a GPU the program of `make gpu-test` does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dormouse_worker.model.attention.choose import BUILT_IN
from dormouse_worker.model.attention.interface import (
    AttentionBackend,
    AttentionMetadata,
    AttentionShape,
    BackendFactory,
    BackendSizes,
    GraphBackend,
    GraphSupport,
)
from dormouse_worker.model.attention.machine import Machine, describe_machine
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache

Span = tuple[int, int]  # a sequence computes the positions [start, end) in this pass
DECODING: tuple[Span, ...] = ((0, 1), (7, 8), (40, 41), (299, 300))
MIXED: tuple[Span, ...] = ((20, 21), (0, 3), (3, 20), (64, 65), (150, 158))  # fresh, chunked, decoding
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
MIN_MODEL_LEN = 128
Make = Callable[[BackendSizes], AttentionBackend]


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
        )


@dataclass(frozen=True)
class Result:
    """What one backend made of one case."""

    backend: str
    case: str
    error: str | None  # None = as it must be
    refusal: str | None = None  # why the backend did not try


def make_cases() -> tuple[Case, ...]:
    """Return the matrix: one thing varied at a time, then random mixtures of everything."""
    return (
        *(Case(f"head-size-{size}", sizes=(size, size)) for size in (16, 24, 80, 128, 256)),
        *(Case(f"heads-{q}-on-{kv}", heads=(q, kv)) for q, kv in ((2, 2), (8, 1), (6, 2), (7, 1))),
        Case("heads-71-on-1", heads=(71, 1), spans=((40, 41), (5, 7))),
        *(Case(f"block-size-{size}", block_size=size) for size in (8, 32, 256)),
        *(Case(f"window-{size}", window=size) for size in (1, 3, 20, 100)),
        *(Case(f"group-window-{size}", window=size, group_window=True) for size in (1, 20)),
        *(Case(str(dtype).removeprefix("torch."), dtype=dtype) for dtype in (torch.bfloat16, torch.float16)),
        Case("values-larger-than-keys", sizes=(16, 40)),
        Case("values-smaller-than-keys", sizes=(48, 32)),
        Case("soft-cap", soft_cap=2.0),
        Case("sinks", has_sinks=True),
        Case("soft-cap-sinks-window", soft_cap=5.0, has_sinks=True, window=9),
        Case("decoding-alone", spans=DECODING),
        Case("window-shorter-than-a-step", heads=(2, 2), sizes=(256, 16), window=1, spans=((0, 40),)),
        Case("prefill-of-several-tiles", heads=(32, 2), spans=((0, 14), (30, 50))),
        *(_random_case(seed) for seed in range(6)),
    )


def _random_case(seed: int) -> Case:
    rng = random.Random(seed)
    starts = [rng.choice((0, rng.randrange(90))) for _ in range(rng.randint(1, 4))]
    kv_heads = rng.randint(1, 3)
    window = rng.choice((None, rng.randint(1, 60)))
    return Case(
        f"random-{seed}",
        heads=(kv_heads * rng.randint(1, 5), kv_heads),
        sizes=(rng.randint(16, 70), rng.randint(16, 70)),
        block_size=rng.choice((8, 16, 32)),
        dtype=rng.choice(tuple(TOLERANCES)),
        window=window,
        group_window=window is not None and rng.random() < 0.5,
        soft_cap=rng.choice((None, 3.0)),
        has_sinks=rng.random() < 0.3,
        spans=tuple((start, start + rng.choice((1, 1, rng.randint(2, 16)))) for start in starts),
        seed=seed,
    )


def make_long_cases() -> tuple[Case, ...]:
    """Return contexts and heads as large models have them: several splits, hundreds of tiles. Too much to interpret."""
    spans = ((4999, 5000), (1999, 2000), (100, 101), (3000, 3200), (0, 300))
    common = Case("long", heads=(32, 8), sizes=(128, 128), dtype=torch.bfloat16, spans=spans)
    return (
        common,
        replace(common, name="long-window", window=1024),
        replace(common, name="long-group-window", window=1024, group_window=True),
        replace(common, name="long-soft-cap-sinks", soft_cap=30.0, has_sinks=True, dtype=torch.float16),
        replace(common, name="long-large-blocks", block_size=256),
        replace(common, name="long-large-heads", heads=(8, 4), sizes=(256, 256)),
        replace(common, name="long-float32", heads=(8, 2), dtype=torch.float32),
    )


def run_all(device_name: str = "cuda", cases: Sequence[Case] | None = None) -> list[Result]:
    """Check every built-in backend on a device, the reference in the same precision included; by default, everything.

    A result without an error and without a refusal is one that holds.
    """
    device = torch.device(device_name)
    machine, cases = describe_machine(device), cases or (*make_cases(), *make_long_cases())
    return [result for name in BUILT_IN for result in run_cases(name, BUILT_IN[name], machine, device, cases)]


def run_cases(
    name: str, factory: BackendFactory, machine: Machine, device: torch.device, cases: Sequence[Case]
) -> list[Result]:
    """Check a backend on a device; what it refuses says so. A backend for graphs is also asked for equal bits."""
    refusals = {case: factory.supports(machine, case.shape) for case in cases}
    results = [
        Result(name, case.name, None, refusal) if refusal else Result(name, case.name, error_of(case, factory, device))
        for case, refusal in refusals.items()
    ]
    if factory.graph_support is GraphSupport.DECODE and None in refusals.values():
        results.append(Result(name, "independence", independence_error(factory, device)))
    return results


def error_of(case: Case, make: Make, device: torch.device) -> str | None:
    """Return how the backend fails the case, whatever it raises; None = it does not."""
    return _error_of(lambda: check(case, make(sizes_of(case)), device))


def independence_error(make: Make, device: torch.device) -> str | None:
    """Return how the backend fails to give a sequence the same bits in any batch; None = it does not."""
    return _error_of(lambda: check_independence(make, device))


def _error_of(run: Callable[[], None]) -> str | None:
    try:
        run()
    except Exception as error:  # noqa: BLE001  a kernel may raise anything, and the other cases shall still run
        return f"{type(error).__name__}: {error}"
    return None


def sizes_of(case: Case) -> BackendSizes:
    """Return the sizes of a backend that can compute the case."""
    return BackendSizes((case.shape,), max_num_seqs=len(case.spans) + 2, max_model_len=case.model_len)


def check(case: Case, backend: AttentionBackend, device: torch.device) -> None:
    """Compute the case; a graph's plan too, where the backend has one. Raises AssertionError on a difference."""
    world = World(case, device)
    plan = backend.plan(world.metadata, device)
    plan.write(world.layer, world.key, world.value)
    actual = plan.attend(world.call, world.query, world.layer)
    torch.testing.assert_close(
        actual.double(), world.expected, atol=TOLERANCES[case.dtype], rtol=TOLERANCES[case.dtype]
    )
    world.check_that_nothing_else_was_written()
    if backend.graph_support is GraphSupport.DECODE:
        _check_graph_plan(case, backend, device)


def _check_graph_plan(case: Case, backend: GraphBackend, device: torch.device) -> None:
    """The last token of every sequence again, with dummy rows behind them, after another pass filled the buffers."""
    decoding = replace(case, spans=tuple((end - 1, end) for _, end in case.spans))
    count = len(case.spans) + 2
    full = replace(decoding, spans=((case.model_len - 1, case.model_len),) * count)
    world = World(decoding, device)
    plan = backend.graph_plan(0, count, device)
    plan.refresh(World(full, device).metadata)
    plan.refresh(world.metadata)
    query, key, value = (_with_dummies(rows, 2) for rows in (world.query, world.key, world.value))
    plan.write(world.layer, key, value)
    actual = plan.attend(world.call, query, world.layer)
    tolerance = TOLERANCES[case.dtype]
    torch.testing.assert_close(actual[:-2].double(), world.expected, atol=tolerance, rtol=tolerance)
    assert not actual[-2:].any(), "a dummy row got something else than zeros"
    world.check_that_nothing_else_was_written()


def check_independence(make: Make, device: torch.device) -> None:
    """A decoding sequence's output is the same to the last bit alone, among others and in a graph's plan.

    Raises AssertionError where it is not.
    """
    case = Case("independence", spans=DECODING)
    backend, world = make(sizes_of(case)), World(case, device)
    together = backend.plan(world.metadata, device)
    together.write(world.layer, world.key, world.value)
    expected = together.attend(world.call, world.query, world.layer)
    in_graph = backend.graph_plan(0, len(case.spans), device)
    in_graph.refresh(world.metadata)
    assert torch.equal(in_graph.attend(world.call, world.query, world.layer), expected), "a graph's plan differs"
    for row in range(len(case.spans)):
        alone = backend.plan(_only(world.metadata, row), device)
        actual = alone.attend(world.call, world.query[row : row + 1], world.layer)
        assert torch.equal(actual, expected[row : row + 1]), f"sequence {row} alone differs"


def _only(metadata: AttentionMetadata, row: int) -> AttentionMetadata:
    """Return the metadata of one decoding sequence, with as many table columns as it needs."""
    num_blocks = -(-int(metadata.context_lens[row]) // metadata.block_size)
    rows = slice(row, row + 1)
    return AttentionMetadata(
        query_starts=np.array([0, 1]),
        context_lens=metadata.context_lens[rows],
        block_tables=metadata.block_tables[rows, :num_blocks],
        slot_mapping=metadata.slot_mapping[rows],
        positions=metadata.positions[rows],
        block_size=metadata.block_size,
        window=metadata.window,
    )


def _with_dummies(rows: torch.Tensor, count: int) -> torch.Tensor:
    return torch.cat([rows, torch.full_like(rows[:1], float("nan")).expand(count, -1, -1)])


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
            for into, rows in zip(pool, (key, value), strict=True):
                into[slots[first:start]] = rows[first:start]
            queries.append(query)
            keys.append(key[start:])
            values.append(value[start:])
            expected.append(textbook(self.call, query, key, value, sinks))
        self.metadata = _describe(case, tables, next(blocks))
        self.layer = LayerCache(*(part.to(device) for part in pool))
        # As models bring them: the heads of all rows behind one another, [1, H, T, D] seen as [T, H, D].
        self.query, self.key, self.value = (
            torch.cat(rows).to(device).transpose(0, 1).contiguous().transpose(0, 1) for rows in (queries, keys, values)
        )
        self.expected = torch.cat(expected).to(device)
        written = [pool[0].clone(), pool[1].clone()]
        for into, rows in zip(written, (keys, values), strict=True):
            into[torch.from_numpy(self.metadata.slot_mapping)] = torch.cat(rows)
        self._written = [part.to(device) for part in written]

    def check_that_nothing_else_was_written(self) -> None:
        """Raise AssertionError if a slot holds something else than it must."""
        for actual, expected in zip((self.layer.key, self.layer.value), self._written, strict=True):
            torch.testing.assert_close(actual, expected, atol=0, rtol=0, equal_nan=True)


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
