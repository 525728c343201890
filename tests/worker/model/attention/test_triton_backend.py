"""Our backend around its kernels: tiles, splits, memory, and what is compiled for real devices."""

import json
import os
import subprocess
import sys
from math import ceil

import numpy as np
import pytest
import torch

from dormouse_worker.model.attention.device_copy import carve, carved_bytes, upload
from dormouse_worker.model.attention.interface import AttentionMetadata, AttentionShape, BackendSizes, GraphSupport
from dormouse_worker.model.attention.tiles import choose_queries_per_tile, make_tiles
from dormouse_worker.model.attention.triton_backend import SPLITTING, TritonBackend
from dormouse_worker.model.attention.triton_launch import Splitting, choose_keys_per_step
from tests.gpu.attention_cases import DECODING
from tests.gpu.attention_world import Case, World
from tools.bootstrap import cache_root

SMALLEST_SHARED_BYTES = 99 << 10  # of the devices with compute capability 8.6, 8.9 and 12.0
CPU = torch.device("cpu")


def describe(spans):
    starts, ends = np.array(spans).T
    nothing = np.zeros(int((ends - starts).sum()), dtype=np.int64)
    tables = np.zeros((len(spans), 1), dtype=np.int64)
    return AttentionMetadata(np.concatenate([[0], np.cumsum(ends - starts)]), ends, tables, nothing, nothing, 16)


def test_a_pass_is_divided_into_tiles_and_decoding_sequences_stand_apart():
    tiles = make_tiles(describe([(0, 5), (7, 8), (10, 14), (0, 1)]), queries_per_tile=2)
    assert tiles.decode.tolist() == [[1, 5, 7, 1], [3, 10, 0, 1]]
    assert tiles.prefill.tolist() == [[0, 0, 0, 2], [0, 2, 2, 2], [0, 4, 4, 1], [2, 6, 10, 2], [2, 8, 12, 2]]
    assert tiles.longest_decode == 8


@pytest.mark.parametrize(("spans", "counts"), [([(3, 4)], (1, 0)), ([(0, 3)], (0, 2))])
def test_a_pass_of_one_kind_has_no_tiles_of_the_other(spans, counts):
    tiles = make_tiles(describe(spans), queries_per_tile=2)
    assert (len(tiles.decode), len(tiles.prefill)) == counts
    assert tiles.longest_decode == (4 if counts[0] else 0)


@pytest.mark.parametrize(
    ("heads", "query_bytes", "queries"), [(1, 256, 64), (4, 256, 16), (7, 256, 8), (71, 256, 1), (1, 1024, 32)]
)
def test_the_rows_of_a_tile_are_bounded_in_number_and_bytes(heads, query_bytes, queries):
    assert choose_queries_per_tile(heads, query_bytes) == queries


@pytest.mark.parametrize(
    ("head_size", "element_bytes", "keys"), [(64, 2, 64), (128, 2, 64), (80, 2, 64), (256, 2, 32), (256, 4, 16)]
)
def test_a_step_reads_as_many_keys_as_fit(head_size, element_bytes, keys):
    assert choose_keys_per_step(head_size, element_bytes) == keys


@pytest.mark.parametrize(("context_len", "count"), [(0, 1), (1, 1), (256, 1), (257, 2), (4096, 16), (100_000, 16)])
def test_a_context_is_divided_by_its_own_length(context_len, count):
    assert SPLITTING.count(context_len) == count


def test_uploaded_arrays_keep_their_shapes_and_are_aligned():
    arrays = [np.arange(3), np.arange(6).reshape(2, 3), np.zeros((0, 4), dtype=np.int64), np.array([7])]
    uploaded = upload(arrays, CPU)
    assert [tensor.tolist() for tensor in uploaded] == [array.tolist() for array in arrays]
    assert {tensor.dtype for tensor in uploaded} == {torch.int32}
    start = uploaded[0].data_ptr()
    assert all((tensor.data_ptr() - start) % 16 == 0 for tensor in uploaded)


def test_carved_tensors_lie_apart_within_the_bytes_that_were_asked_for():
    shapes = [(3,), (65, 2), (1, 1)]
    buffer = torch.zeros(carved_bytes(shapes), dtype=torch.uint8)
    tensors = carve(buffer, shapes, [torch.float32, torch.int32, torch.int32])
    for number, tensor in enumerate(tensors, start=1):
        tensor.fill_(number)
    assert [set(tensor.flatten().tolist()) for tensor in tensors] == [{1.0}, {2}, {3}]
    assert buffer.numel() == 256 + 768 + 256
    assert [tensor.data_ptr() - buffer.data_ptr() for tensor in tensors] == [0, 256, 1024]


SHAPE = AttentionShape(4, 2, 16, 24, torch.float32, 16)
SIZES = BackendSizes((SHAPE,), max_num_seqs=8, max_model_len=512, num_groups=2)


def test_the_workspace_holds_the_splits_and_each_groups_ints():
    parts, totals = 8 * 2 * 4 * 24 * 4, 8 * 2 * 4 * 4
    group = 256 + 256 + 8 * 32 * 4  # tiles 8 × 4 ints, slots 8 ints in a section of its own, tables
    assert TritonBackend(SIZES).workspace_bytes() == parts + totals + 2 * group


def test_a_bound_workspace_is_what_the_plans_live_in():
    backend = TritonBackend(SIZES)
    workspace = torch.zeros(backend.workspace_bytes(), dtype=torch.uint8)
    backend.bind_workspace(workspace)
    plan = backend.graph_plan(1, 8, CPU)
    inside = range(workspace.data_ptr(), workspace.data_ptr() + workspace.numel())
    assert all(tensor.data_ptr() in inside for tensor in (plan.decode, plan.slots, plan.tables, plan.workspace.parts))
    assert (backend.graph_support, repr(backend)) == (
        GraphSupport.DECODE,
        f"TritonBackend({len(workspace)} bytes bound)",
    )


def test_without_one_it_is_allocated_at_the_first_plan_and_kept():
    backend = TritonBackend(SIZES)
    assert "to bind" in repr(backend)
    plans = [backend.graph_plan(0, size, CPU) for size in (2, 4)]
    assert plans[0].slots.data_ptr() == plans[1].slots.data_ptr()
    assert "bytes bound" in repr(backend)


def test_groups_do_not_share_their_ints():
    backend = TritonBackend(SIZES)
    first, second = (backend.graph_plan(group, 4, CPU) for group in range(2))
    world = World(Case("any", spans=DECODING), CPU)
    first.refresh(world.metadata)
    assert first.slots.tolist() == world.metadata.slot_mapping.tolist()
    assert second.slots.tolist() == [-1] * 4


def test_a_plan_for_a_graph_is_refreshed_in_place_and_ends_in_dummies():
    backend = TritonBackend(SIZES)
    plan = backend.graph_plan(0, 6, CPU)
    addresses = [tensor.data_ptr() for tensor in (plan.decode, plan.slots, plan.tables)]
    launched = (len(plan.decode), plan.num_splits)
    metadata = World(Case("any", spans=DECODING), CPU).metadata
    plan.refresh(metadata)
    assert plan.decode[:, 2:].tolist() == [[0, 1], [7, 1], [40, 1], [299, 1], [0, 0], [0, 0]]
    assert plan.slots.tolist() == [*metadata.slot_mapping.tolist(), -1, -1]
    assert torch.equal(plan.tables[:4, :19], torch.from_numpy(metadata.block_tables).int())
    assert [tensor.data_ptr() for tensor in (plan.decode, plan.slots, plan.tables)] == addresses
    assert (len(plan.decode), plan.num_splits) == launched == (6, 2)


@pytest.mark.parametrize("spans", [((0, 1),) * 3, ((0, 2),)])
def test_a_plan_for_a_graph_takes_no_more_than_it_has_rows_for(spans):
    plan = TritonBackend(SIZES).graph_plan(0, 2, CPU)
    with pytest.raises(AssertionError):
        plan.refresh(describe(spans))


def test_more_decoding_sequences_than_agreed_are_refused():
    case = Case("any", spans=((0, 1),) * 9)
    with pytest.raises(AssertionError, match="than the workspace was made for"):
        TritonBackend(SIZES).plan(World(case, CPU).metadata, CPU)


def test_every_key_lies_in_one_of_the_splits_that_are_launched():
    """The kernel finds the length of a split by itself; the arithmetic is repeated here."""
    splitting = Splitting(max_splits=4, min_tokens=32)
    for context_len in range(1, 400):
        share = ceil(ceil(context_len / 4) / 16) * 16
        assert splitting.count(context_len) * max(share, 32) >= context_len


def test_what_is_launched_compiles_for_real_devices_and_fits_into_them():
    """Triton needs no device to compile: registers, tensor cores and shared memory are those of a real launch.

    What it made of the same source before is found again.
    """
    child = subprocess.run(
        [sys.executable, "-m", "tests.worker.model.attention.compiled"],
        env={**os.environ, "TRITON_CACHE_DIR": str(cache_root() / "triton"), "TRITON_DEFAULT_FP_FUSION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    results = json.loads(child.stdout)
    assert {result["kernel"] for result in results} == {"write_cache", "attend_tiles", "join_splits"}
    for result in results:
        assert result["shared_bytes"] <= SMALLEST_SHARED_BYTES, result
        if result["kernel"] == "attend_tiles":
            assert result["copies_ahead"] or "of 8 bits" in result["case"], result  # rows of them are not aligned
            assert result["tensor_cores"] or result["case"] == "float32", result
