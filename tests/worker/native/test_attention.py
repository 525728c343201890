"""The backend for processors against the textbook formula, by the table of cases that all backends share."""

from dataclasses import replace

import pytest
import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.attention.interface import AttentionShape
from dormouse_worker.model.attention.machine import Machine
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.native_plan import TYPES
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.cache_rows import MOST
from dormouse_worker.model.tensors import name_of
from dormouse_worker.native.library import Missing
from tests.gpu.attention_cases import DECODING, TOLERANCES, _only, check, make_cases, make_long_cases
from tests.gpu.attention_world import Case, World

CPU = torch.device("cpu")
CASES = {case.name: case for case in make_cases() if name_of(case.dtype) in TYPES}
LONG = {case.name: case for case in make_long_cases() if name_of(case.dtype) in TYPES}
SHAPE = AttentionShape(4, 2, 64, 64, torch.bfloat16, 16)
MACHINE = Machine("cpu", (2, 15))


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_compute_the_formula(kernels, name):
    check(CASES[name], NativeBackend(kernels=kernels), CPU)


@pytest.mark.parametrize("stored", MOST)
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_compute_the_formula_of_a_cache_of_8_bits(kernels, name, stored):
    check(replace(CASES[name], stored=stored), NativeBackend(kernels=kernels), CPU)


@pytest.mark.parametrize("stored", MOST)
@pytest.mark.parametrize("name", LONG)
def test_the_fastest_kernels_compute_long_contexts_of_8_bits(variants, name, stored):
    check(replace(LONG[name], stored=stored), NativeBackend(kernels=next(iter(variants.values()))), CPU)


@pytest.mark.parametrize("name", LONG)
def test_the_fastest_kernels_compute_long_contexts(variants, name):
    check(LONG[name], NativeBackend(kernels=next(iter(variants.values()))), CPU)


def test_a_sequence_has_the_same_bits_in_any_batch(kernels):
    case = Case("independence", spans=DECODING)
    backend, world = NativeBackend(kernels=kernels), World(case, CPU)
    together = backend.plan(world.metadata, CPU)
    together.write(world.layer, world.key, world.value)
    expected = together.attend(world.call, world.query, world.layer)
    for row in range(len(case.spans)):
        alone = backend.plan(_only(world.metadata, row), CPU)
        assert torch.equal(alone.attend(world.call, world.query[row : row + 1], world.layer), expected[row : row + 1])


MANY = tuple((end - 1, end) for end in (1, 7, 63, 64, 65, 130, 511, 512, 513, 600, 1100, 1200))
TEAMS = {
    "four of four": {"heads": (12, 4)},
    "four and two of six": {"heads": (6, 6)},
    "a window": {"heads": (8, 4), "window": 100},
    "sinks": {"heads": (8, 4), "has_sinks": True},
    "bfloat16": {"heads": (12, 4), "sizes": (64, 64), "dtype": torch.bfloat16},
    "int8": {"heads": (12, 4), "sizes": (64, 64), "dtype": torch.bfloat16, "stored": "int8"},
    "int8 of float32": {"heads": (8, 4), "window": 100, "stored": "int8"},
    "fp8": {"heads": (12, 4), "sizes": (64, 64), "dtype": torch.bfloat16, "stored": "fp8"},
    "fp8 of float32": {"heads": (8, 4), "window": 100, "stored": "fp8"},
    "some with a prompt": {"heads": (8, 4), "spans": (*MANY, (10, 30), (600, 640))},
}


@pytest.mark.parametrize("name", TEAMS)
def test_heads_that_go_together_get_what_each_gets_alone(kernels, name):
    """They do where there are many sequences; alone each sequence is computed head by head."""
    backend, world = _written(kernels, case := Case(name, **{"spans": MANY, **TEAMS[name]}))
    together = backend.plan(world.metadata, CPU).attend(world.call, world.query, world.layer)
    torch.testing.assert_close(
        together.double(), world.expected, atol=TOLERANCES[case.dtype], rtol=TOLERANCES[case.dtype]
    )
    for row in range(len(MANY)):
        alone = backend.plan(_only(world.metadata, row), CPU)
        assert torch.equal(alone.attend(world.call, world.query[row : row + 1], world.layer), together[row : row + 1])


def test_a_chunk_has_the_same_bits_however_a_prompt_is_cut(kernels):
    whole = World(Case("whole", spans=((0, 150),)), CPU)
    backend = NativeBackend(kernels=kernels)
    plan = backend.plan(whole.metadata, CPU)
    plan.write(whole.layer, whole.key, whole.value)
    expected = plan.attend(whole.call, whole.query, whole.layer)
    cut = replace(
        whole.metadata,
        query_starts=whole.metadata.query_starts * 0 + [0, 47],
        slot_mapping=whole.metadata.slot_mapping[103:],
        positions=whole.metadata.positions[103:],
    )
    assert torch.equal(backend.plan(cut, CPU).attend(whole.call, whole.query[103:], whole.layer), expected[103:])


def _written(kernels, case):
    """Return the backend, and a world whose keys and values it has stored."""
    backend, world = NativeBackend(kernels=kernels), World(case, CPU)
    backend.plan(world.metadata, CPU).write(world.layer, world.key, world.value)
    return backend, world


def _attend_from(backend, world, first, count):
    """Return what the rows [first, first + count) of a world of one sequence get in a pass of their own."""
    rows = slice(first, first + count)
    cut = replace(
        world.metadata,
        query_starts=world.metadata.query_starts * 0 + [0, count],
        slot_mapping=world.metadata.slot_mapping[rows],
        positions=world.metadata.positions[rows],
    )
    return backend.plan(cut, CPU).attend(world.call, world.query[rows], world.layer)


ONE_BY_ONE = {
    "as a model": Case("", heads=(6, 2), sizes=(64, 64)),
    "in bfloat16": Case("", heads=(6, 2), sizes=(64, 64), dtype=torch.bfloat16),
    "of odd sizes": Case("", heads=(3, 1), sizes=(42, 27), dtype=torch.bfloat16),
    "in a window": Case("", window=70, sizes=(24, 16), has_sinks=True, soft_cap=3.0),
    "int8": Case("", heads=(6, 2), sizes=(64, 64), dtype=torch.bfloat16, stored="int8"),
    "int8 in a window": Case("", window=70, sizes=(24, 16), has_sinks=True, soft_cap=3.0, stored="int8"),
    "fp8": Case("", heads=(6, 2), sizes=(64, 64), dtype=torch.bfloat16, stored="fp8"),
    "fp8 in a window": Case("", window=70, sizes=(24, 16), has_sinks=True, soft_cap=3.0, stored="fp8"),
}


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_prompt_has_the_bits_of_its_tokens_one_by_one(kernels, name):
    """Many rows are computed another way than few: over two segments of the context, in units of several spans."""
    backend, world = _written(kernels, replace(ONE_BY_ONE[name], spans=((430, 580),)))
    whole = _attend_from(backend, world, 0, 150)
    alone = torch.cat([_attend_from(backend, world, row, 1) for row in range(150)])
    assert torch.equal(alone, whole)


@pytest.mark.parametrize("name", ONE_BY_ONE)
@pytest.mark.parametrize("num_threads", [1, 8])
def test_tokens_of_an_image_see_each_other(kernels, name, num_threads):
    """One over the end of a segment, one of few rows, text between them."""
    backend, world = _written(kernels, replace(ONE_BY_ONE[name], spans=((430, 580), (0, 9))))
    kernels.set_num_threads(num_threads)
    positions = world.metadata.positions
    last_seen = positions.copy()
    last_seen[5:140], last_seen[142:145], last_seen[150:158] = positions[139], positions[144], positions[157]
    metadata = replace(world.metadata, last_seen=last_seen)
    ours, theirs = (
        each.plan(metadata, CPU).attend(world.call, world.query, world.layer) for each in (backend, SdpaBackend())
    )
    tolerance = TOLERANCES[ONE_BY_ONE[name].dtype]
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", ONE_BY_ONE)
@pytest.mark.parametrize(("end", "num_threads"), [(1540, 8), (4100, 2)])  # heads of 8 bits go together in the second
def test_a_context_shared_out_over_threads_has_the_same_bits(kernels, name, end, num_threads):
    """Also over a segment's end."""
    first = (end - 1) // 512 * 512 - 2
    backend, world = _written(kernels, replace(ONE_BY_ONE[name], spans=((first, first + 4),)))
    kernels.set_num_threads(1)
    alone = _attend_from(backend, world, 0, 4)
    kernels.set_num_threads(num_threads)
    assert torch.equal(_attend_from(backend, world, 0, 4), alone)


def test_queries_may_lie_in_any_order(kernels):
    world = World(Case("strides", sizes=(24, 24)), CPU)
    plan = NativeBackend(kernels=kernels).plan(world.metadata, CPU)
    plan.write(world.layer, world.key, world.value)
    scattered = world.query.transpose(0, 2).contiguous().transpose(0, 2)
    assert scattered.stride(-1) != 1
    expected = plan.attend(world.call, world.query.contiguous(), world.layer)
    assert torch.equal(plan.attend(world.call, scattered, world.layer), expected)


@pytest.mark.parametrize(
    ("machine", "shape", "words"),
    [
        (replace(MACHINE, device_type="cuda"), SHAPE, "runs on processors, not on cuda devices"),
        (replace(MACHINE, missing_kernels="there is no compiler"), SHAPE, "cannot be used: there is no compiler"),
        (MACHINE, replace(SHAPE, dtype=torch.float16), "reads float32 and bfloat16, not float16"),
        (MACHINE, replace(SHAPE, value_size=512), "takes head sizes up to 256, and this is 512"),
        (MACHINE, replace(SHAPE, num_heads=5), "5 query heads cannot share 2 key heads evenly"),
    ],
)
def test_it_says_what_it_can_not(machine, shape, words):
    assert NativeBackend.supports(machine, shape) == words


def test_it_takes_what_it_can():
    assert NativeBackend.supports(MACHINE, SHAPE) is None


def test_without_kernels_it_is_refused_with_the_reason():
    with pytest.raises(InvalidSettings, match="attention_backend is native, which needs its kernels: nobody compiled"):
        NativeBackend(kernels=Missing("nobody compiled them"))
