"""Memory arithmetic, by table."""

import dataclasses

import pytest

from dormouse_worker.common.errors import InsufficientMemory, MaxModelLenTooLarge
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.memory.arithmetic import (
    DEFAULT_KV_CACHE_BYTES,
    GRAPH_BYTES_PER_LAYER,
    GRAPH_STREAM_BYTES,
    Limit,
    Measured,
    choose_limit,
    estimate_graph_bytes,
    gib,
    make_report,
    split_device_measurement,
    split_measurement,
)
from dormouse_worker.model.memory.fit import require_fit

GIB, MIB = 1 << 30, 1 << 20


def settings(**overrides):
    return EngineSettings(model="m", **overrides)


@pytest.mark.parametrize(
    ("wanted", "container", "machine", "expected"),
    [
        (0, None, 8 * GIB, Limit(8 * GIB, is_known=False)),
        (0, 2 * GIB, 8 * GIB, Limit(2 * GIB, is_known=True)),
        (GIB, None, 8 * GIB, Limit(GIB, is_known=True)),
        (GIB, 2 * GIB, 8 * GIB, Limit(GIB, is_known=True)),
        (4 * GIB, 2 * GIB, 8 * GIB, Limit(2 * GIB, is_known=True)),
    ],
)
def test_the_smaller_of_setting_and_container_counts(wanted, container, machine, expected):
    assert choose_limit(settings(memory_limit_bytes=wanted), container, machine) == expected


@pytest.mark.parametrize(
    ("baseline", "loaded", "peak", "activation", "non_torch"),
    [
        (300, 800, 950, 150, 310),  # 800 at rest = 500 weights + 300 libraries
        (300, 850, 950, 100, 360),  # loading left 50 behind
        (300, 600, 950, 150, 310),  # weights not yet resident: the baseline stands for the libraries
        (300, 800, 700, 0, 310),  # nothing above what rests
    ],
)
def test_resident_memory_is_divided_into_three_shares(baseline, loaded, peak, activation, non_torch):
    measured = split_measurement(
        weights_bytes=500, baseline_bytes=baseline, loaded_bytes=loaded, peak_bytes=peak, parent_bytes=10, seconds=1.0
    )
    assert measured == Measured(500, activation, non_torch, 1.0, measured_by="resident memory")


@pytest.mark.parametrize(
    ("arena", "torch", "activation"),
    [
        (500, 0, 0),
        (500, 150, 150),  # weights in an arena
        (0, 650, 150),  # weights in torch's pool
        (502, 148, 150),  # arenas are rounded up
        (0, 0, 0),  # nobody holds them: not ours to judge
    ],
)
def test_a_devices_memory_is_divided_wherever_the_weights_lie(arena, torch, activation):
    measured = split_device_measurement(
        weights_bytes=500,
        arena_bytes=arena,
        torch_bytes=torch,
        other_bytes=60,
        graph_bytes=40,
        seconds=1.0,
        measured_by="nvml",
    )
    assert measured == Measured(500, activation, 60, 1.0, graph_bytes=40, measured_by="nvml")
    assert measured.needed_bytes == 500 + activation + 60 + 40


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), 0),
        ((1,), GRAPH_STREAM_BYTES + 2 * GRAPH_BYTES_PER_LAYER + 10),
        ((1, 2, 8), GRAPH_STREAM_BYTES + 3 * 2 * GRAPH_BYTES_PER_LAYER + 80),
    ],
)
def test_graphs_are_guessed_from_their_number_and_the_largest(sizes, expected):
    assert estimate_graph_bytes(sizes, num_layers=2, row_bytes=10) == expected


def test_the_guess_is_near_what_users_of_the_field_report():
    guess = estimate_graph_bytes([*range(8, 513, 8), 1, 2, 4], num_layers=28, row_bytes=4 * 151_936)
    assert 0.45 * GIB < guess < 0.8 * GIB


MEASURED = Measured(weights_bytes=100 * MIB, peak_activation_bytes=50 * MIB, non_torch_bytes=350 * MIB, seconds=1.0)


def report(limit=None, measured=MEASURED, **overrides):
    fields = settings(**{"gpu_memory_utilization": 0.5, **overrides})
    return make_report(
        fields,
        limit or Limit(2 * GIB, is_known=True),
        measured,
        device=fields.device,
        block_bytes=MIB,
        max_model_len=128,
        rank=3,
    )


def fit(limit=None, measured=MEASURED, **overrides):
    """Raise unless what `report` returns can serve."""
    require_fit(report(limit, measured, **overrides), settings(**{"gpu_memory_utilization": 0.5, **overrides}))


@pytest.mark.parametrize(
    ("limit", "overrides", "num_blocks", "limited_by"),
    [
        (Limit(2 * GIB, is_known=True), {}, 524, "memory limit 2.00 GiB"),
        (Limit(GIB, is_known=True), {}, 12, "memory limit 1.00 GiB"),
        (Limit(GIB, is_known=True), {"gpu_memory_utilization": 0.4}, 0, "memory limit 1.00 GiB"),
        (Limit(2 * GIB, is_known=True), {"kv_cache_memory_bytes": 7 * MIB}, 7, "kvCacheMemory"),
        (Limit(8 * GIB, is_known=False), {}, 1024, "kvCacheMemory default 1.0 GiB (no memory limit is set)"),
        (Limit(GIB, is_known=False), {}, 12, "kvCacheMemory default 1.0 GiB (no memory limit is set)"),
        (Limit(8 * GIB, is_known=False), {"kv_cache_memory_bytes": 3 * MIB}, 3, "kvCacheMemory"),
        (
            Limit(2 * GIB, is_known=True),
            {"device_memory_budget_bytes": GIB - 1},
            519,
            "device memory budget 1024.0 MiB",
        ),
        (Limit(2 * GIB, is_known=True), {"device_memory_budget_bytes": GIB + 1}, 524, "memory limit 2.00 GiB"),
        (
            Limit(8 * GIB, is_known=False),
            {"device_memory_budget_bytes": 600 * MIB},
            96,
            "device memory budget 600.0 MiB",
        ),
        (
            Limit(2 * GIB, is_known=True),
            {"device_memory_reserve_bytes": int(2 * GIB * 0.5) - 600 * MIB, "gpu_memory_utilization": 0.5},
            96,
            "device memory budget 600.0 MiB",
        ),
        (
            Limit(4 * GIB, is_known=True),
            {
                "device_memory_reserve_bytes": 4 * GIB // 2 - 1200 * MIB,
                "device_memory_sharers": 2,
                "gpu_memory_utilization": 0.5,
            },
            96,
            "device memory budget 600.0 MiB",
        ),
        (
            Limit(2 * GIB, is_known=True),
            {"device_memory_budget_bytes": 512 * MIB, "device": "cuda", "tensor_parallel_size": 2},
            8,
            "device memory budget 512.0 MiB",
        ),
        (
            Limit(GIB, is_known=True),
            {"device_memory_budget_bytes": GIB, "device": "cpu", "tensor_parallel_size": 2},
            8,
            "device memory budget 512.0 MiB",
        ),
    ],
)
def test_what_is_left_makes_blocks_and_it_is_said_what_bounds_them(limit, overrides, num_blocks, limited_by):
    made = report(limit, **overrides)
    assert (made.num_gpu_blocks, made.limited_by) == (num_blocks, limited_by)
    assert made.kv_cache_bytes >= num_blocks * MIB


def test_a_report_carries_everything_that_was_measured():
    made = report(swap_space_bytes=5 * MIB + 1)
    assert (made.rank, made.total_bytes, made.gpu_memory_utilization) == (3, 2 * GIB, 0.5)
    assert (made.weights_bytes, made.peak_activation_bytes, made.non_torch_bytes) == (100 * MIB, 50 * MIB, 350 * MIB)
    assert (made.num_cpu_blocks, made.block_bytes, made.block_size, made.max_model_len) == (5, MIB, 16, 128)


def test_on_the_cpu_swapped_blocks_share_the_memory_and_on_a_gpu_they_do_not():
    swap = {"swap_space_bytes": 24 * MIB}
    assert [report(**swap, device=device).num_gpu_blocks for device in ("cpu", "cuda")] == [500, 524]


def test_swap_space_counts_against_an_exact_cache():
    exact = {"gpu_memory_utilization": 1.0, "kv_cache_memory_bytes": 1500 * MIB}
    fit(**exact)
    with pytest.raises(InsufficientMemory, match=r"swap space 64\.0 MiB and a cache of 1\.46 GiB exceed"):
        fit(**exact, swap_space_bytes=64 * MIB)


GRAPHS = dataclasses.replace(MEASURED, graph_bytes=200 * MIB, measured_by="nvml")
GPU_MEMORY = {"device": "cuda", "gpu_memory_utilization": 1.0}


def test_graphs_take_from_the_cache_and_stand_in_the_report():
    with_graphs, without = (report(measured=measured, **GPU_MEMORY) for measured in (GRAPHS, MEASURED))
    assert without.num_gpu_blocks - with_graphs.num_gpu_blocks == 200
    assert (with_graphs.graph_bytes, with_graphs.measured_by) == (200 * MIB, "nvml")
    assert (without.graph_bytes, without.measured_by) == (0, "resident memory")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({}, "context and libraries 350.0 MiB, graphs 200.0 MiB; use a GPU with more memory or raise gpuMemoryUtil"),
        (
            {"kv_cache_memory_bytes": GIB},
            "graphs 200.0 MiB and a cache of 1.00 GiB exceed .* lower kvCacheMemory or use",
        ),
    ],
)
def test_a_gpus_errors_name_its_own_shares_and_knobs(overrides, words):
    limit = Limit(700 * MIB, is_known=True, name="device memory")
    with pytest.raises(InsufficientMemory, match=words):
        fit(limit, GRAPHS, **GPU_MEMORY, **overrides)


def test_a_gpus_cache_is_bounded_by_its_memory():
    made = report(Limit(GIB, is_known=True, name="device memory"), **GPU_MEMORY)
    assert made.limited_by == "device memory 1.00 GiB"


def test_a_report_that_fits_passes():
    fit()


def test_not_one_block_is_insufficient_memory_with_numbers_and_knobs():
    with pytest.raises(InsufficientMemory) as caught:
        fit(Limit(900 * MIB, is_known=True))
    for part in (
        "900.0 MiB",
        "450.0 MiB",
        "100.0 MiB",
        "50.0 MiB",
        "350.0 MiB",
        "gpuMemoryUtilization 0.5",
        "memory limit",
    ):
        assert part in str(caught.value)


def test_an_exact_cache_above_the_memory_is_insufficient_memory():
    with pytest.raises(InsufficientMemory, match=r"cache of 2\.00 GiB exceed the 2\.00 GiB .* lower kvCacheMemory"):
        fit(kv_cache_memory_bytes=2 * GIB)


def test_an_exact_cache_below_one_block_is_insufficient_memory():
    with pytest.raises(InsufficientMemory, match="kvCacheMemory 1000 is less than one block of 1048576 bytes"):
        fit(kv_cache_memory_bytes=1000)


def test_a_model_length_above_the_blocks_names_both_numbers_and_the_knob():
    with pytest.raises(
        MaxModelLenTooLarge, match=r"hold 112 tokens, the model length is 128 .*set maxModelLen to at most 112"
    ):
        fit(kv_cache_memory_bytes=7 * MIB)


def test_the_default_cache_is_one_gib():
    assert gib(DEFAULT_KV_CACHE_BYTES) == "1.00 GiB"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({}, r"the device memory budget of 490\.0 MiB leaves no block of 1048576 bytes beside weights 100\.0 MiB"),
        (
            {"kv_cache_memory_bytes": MIB},
            r"rounding 4\.0 MiB and a cache of 1\.0 MiB exceed the device memory budget of 490\.0 MiB",
        ),
    ],
)
def test_a_budget_that_is_too_small_is_named(overrides, words):
    fit(device_memory_budget_bytes=700 * MIB)
    with pytest.raises(InsufficientMemory, match=words):
        fit(device_memory_budget_bytes=490 * MIB, **overrides)


def test_a_budget_may_be_that_of_an_exact_cache():
    fit(device_memory_budget_bytes=511 * MIB, kv_cache_memory_bytes=7 * MIB, block_size=128)
