"""What every attention backend must compute, as a table of cases and a check that runs on any device.

On CPU the tests run it, Triton's kernels under the interpreter; on a GPU the program of `make gpu-test` does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dormouse_worker.common.settings import AUTO
from dormouse_worker.model.attention.choose import BUILT_IN, refuse
from dormouse_worker.model.attention.interface import (
    AttentionBackend,
    AttentionMetadata,
    BackendFactory,
    BackendSizes,
    GraphBackend,
    GraphSupport,
)
from dormouse_worker.model.attention.machine import Machine, describe_machine
from dormouse_worker.model.cache_rows import MOST
from tests.gpu.attention_world import Case, Span, World

DECODING: tuple[Span, ...] = ((0, 1), (7, 8), (40, 41), (299, 300))
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
Make = Callable[[BackendSizes], AttentionBackend]


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
        *(case for stored in MOST for case in _rounded_cases(stored)),
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


def _rounded_cases(stored: str) -> tuple[Case, ...]:
    """Return cases of a cache of 8 bits."""
    common = Case(stored, stored=stored, spans=((20, 21), (3, 20)))
    return (
        replace(common, spans=(*common.spans, (64, 65))),
        replace(common, name=f"{stored}-odd-heads", sizes=(17, 33), dtype=torch.float16, spans=((0, 3), (40, 41))),
        replace(
            common,
            name=f"{stored}-window-soft-cap-sinks",
            sizes=(64, 48),
            dtype=torch.bfloat16,
            window=9,
            soft_cap=5.0,
            has_sinks=True,
        ),
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
        *(replace(common, name=f"long-{stored}", stored=stored) for stored in MOST),
        *(replace(common, name=f"long-{stored}-float16", stored=stored, dtype=torch.float16) for stored in MOST),
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
    refusals = {case: refuse(factory, machine, [case.shape]) for case in cases}
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
    for stored in (AUTO, *MOST):
        _check_independence(make, Case("independence", spans=DECODING, stored=stored), device)


def _check_independence(make: Make, case: Case, device: torch.device) -> None:
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
