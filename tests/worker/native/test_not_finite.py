"""What is no number in the cache or in a query reaches the output of whoever sees it, and of nobody else."""

import pytest
import torch

from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.cache_rows import round_values
from tests.gpu.attention_world import Case, World

CPU = torch.device("cpu")
NAN = float("nan")
LONG = 1200  # three segments
CASES = {
    "decoding": Case("decoding", spans=((LONG - 1, LONG), (40, 41))),
    "a prompt": Case("a prompt", spans=((0, 90), (3, 20))),
    "in pairs": Case("in pairs", sizes=(64, 64), dtype=torch.bfloat16, spans=((LONG - 1, LONG), (5, 70))),
    "soft caps": Case("soft caps", soft_cap=5.0, spans=((LONG - 1, LONG), (0, 70))),
    "sinks": Case("sinks", has_sinks=True, spans=((LONG - 1, LONG), (0, 70))),
    "int8": Case("int8", stored="int8", spans=((LONG - 1, LONG), (5, 70))),
    "int8 in pairs": Case("", stored="int8", sizes=(64, 64), dtype=torch.bfloat16, spans=((LONG - 1, LONG), (5, 70))),
    "fp8 in pairs": Case("", stored="fp8", sizes=(64, 64), dtype=torch.bfloat16, spans=((LONG - 1, LONG), (5, 70))),
    "a window": Case("a window", window=600, spans=((LONG - 1, LONG), (0, 70))),
    "many": Case("many", heads=(12, 4), spans=tuple((end - 1, end) for end in (7, 64, 65, 513, 600, 700, 800, 1100))),
}
PLACES = {"the first position": (0, 1), "the last one": (-1, None), "a segment's every position": (512, 1024)}


def attend(backend, world):
    return backend.plan(world.metadata, CPU).attend(world.call, world.query, world.layer)


def slots_of(world, row):
    """Return where each position of a sequence lies, in order."""
    size = world.metadata.block_size
    return torch.tensor(
        [
            world.metadata.block_tables[row][position // size] * size + position % size
            for position in range(world.metadata.context_lens[row])
        ]
    )


def no_number(case, pool):
    """Return what the cache holds of a head that is none."""
    row = torch.full((case.sizes[pool == "value"],), NAN)
    return round_values(row, case.stored) if case.shape.is_rounded else row.to(case.dtype)


def sees(world, row, places):
    """Return which rows of a sequence see one of the places."""
    starts = world.metadata.query_starts
    window = world.call.window or LONG
    positions = world.metadata.positions[starts[row] : starts[row + 1]]
    wanted = range(world.metadata.context_lens[row])[slice(*places)]
    return torch.tensor([any(position - window < place <= position for place in wanted) for position in positions])


@pytest.mark.parametrize("pool", ["key", "value"])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("name", CASES)
def test_it_reaches_every_row_that_sees_it_and_no_other(kernels, name, places, pool):
    backend, world = NativeBackend(kernels=kernels), World(CASES[name], CPU)
    backend.plan(world.metadata, CPU).write(world.layer, world.key, world.value)
    before = attend(backend, world)
    assert before.isfinite().all()
    row, kv_head = len(CASES[name].spans) - 1 if name == "many" else 0, 1
    rows = getattr(world.layer, pool)
    rows[slots_of(world, row)[slice(*PLACES[places])], kv_head] = no_number(CASES[name], pool)
    after = attend(backend, world)
    shared = CASES[name].heads[0] // CASES[name].heads[1]
    start, end = world.metadata.query_starts[row : row + 2]
    hit = torch.zeros(after.shape[:2], dtype=torch.bool)
    hit[start:end, kv_head * shared : (kv_head + 1) * shared] = sees(world, row, PLACES[places])[:, None]
    assert after[hit].isnan().all()
    same = ~hit
    if pool == "value":  # times a weight of 0 it reaches earlier rows of its own sequence too
        same[start:end, kv_head * shared : (kv_head + 1) * shared] = False
    assert torch.equal(after[same], before[same])


@pytest.mark.parametrize("value", [NAN, float("inf"), float("-inf")])
@pytest.mark.parametrize("name", CASES)
def test_a_query_that_is_no_number_gets_none(kernels, name, value):
    backend, world = NativeBackend(kernels=kernels), World(CASES[name], CPU)
    backend.plan(world.metadata, CPU).write(world.layer, world.key, world.value)
    before = attend(backend, world)
    world.query[0, 0] = value
    after = attend(backend, world)
    assert after[0, 0].isnan().all()
    assert torch.equal(after[0, 1:], before[0, 1:])
    assert torch.equal(after[1:], before[1:])
