"""Which backends remain for a model on a machine, and what is said of the others."""

from dataclasses import replace

import pytest
import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.attention.choose import BUILT_IN, choose
from dormouse_worker.model.attention.interface import AttentionShape, GraphSupport
from dormouse_worker.model.attention.machine import Machine
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.attention.varlen import PARAMETERS

SHAPE = AttentionShape(32, 8, 128, 128, torch.bfloat16, 16)
LARGE_BLOCKS = replace(SHAPE, block_size=256)
CPU = Machine("cpu", (2, 15), triton_version=(3, 9), varlen_parameters=PARAMETERS)
H100 = Machine("cuda", (2, 15), (9, 0), (3, 9), 92600, PARAMETERS, has_cudnn_varlen=True)
A100 = replace(H100, capability=(8, 0))
T4 = replace(H100, capability=(7, 5))


def test_a_cpu_has_our_own_kernels():
    choice = choose("auto", CPU, [SHAPE])
    assert choice.candidates == ("native",)
    assert str(choice) == (
        "attention by native; triton: runs on CUDA devices, not on cpu; varlen: runs on CUDA devices, not on cpu; "
        "sdpa: is the reference, for where nothing else can"
    )


def test_where_nobody_compiled_them_a_cpu_has_the_reference_alone():
    choice = choose("auto", replace(CPU, missing_kernels="there is no compiler"), [SHAPE])
    assert choice.candidates == ("sdpa",)
    assert choice.refusals["native"] == "cannot be used: there is no compiler"


def test_where_both_can_ours_comes_first_and_the_reference_stays_behind():
    choice = choose("auto", H100, [SHAPE])
    assert choice.candidates == ("triton", "varlen")
    assert choice.refusals == {
        "native": "runs on processors, not on cuda devices",
        "sdpa": "is the reference, for where nothing else can",
    }


def test_one_of_several_ranks_takes_the_preferred_backend_untimed():
    choice = choose("auto", H100, [SHAPE], is_alone=False)
    assert choice.candidates == ("triton",)
    assert choice.refusals["varlen"] == "is not timed in a group, which takes triton"


def test_who_wants_graphs_gets_no_backend_without_them():
    choice = choose("auto", H100, [SHAPE], wants_graphs=True)
    assert choice.candidates == ("triton",)
    assert choice.refusals["varlen"] == "cannot be captured in a CUDA graph"


def test_graphs_are_given_up_where_the_only_backend_that_can_has_none():
    without_triton = replace(H100, triton_version=None)
    choice = choose("auto", without_triton, [SHAPE], wants_graphs=True)
    assert choice.candidates == ("varlen",)


def test_one_layer_that_a_backend_can_not_compute_rules_it_out():
    choice = choose("auto", H100, [SHAPE, replace(SHAPE, has_soft_cap=True)])
    assert choice.candidates == ("triton",)
    assert choice.refusals["varlen"] == "knows no soft-cap on the scores"


def test_an_old_device_falls_back_to_the_reference():
    choice = choose("auto", T4, [SHAPE])
    assert choice.candidates == ("sdpa",)
    assert choice.refusals["triton"] == "needs compute capability 8.0 or higher, and the device's is 7.5"


def test_a_torch_without_block_tables_leaves_ours():
    old = replace(H100, torch_version=(2, 11), varlen_parameters=PARAMETERS - {"block_table", "seqused_k"})
    choice = choose("auto", old, [SHAPE])
    assert choice.candidates == ("triton",)
    assert choice.refusals["varlen"] == (
        "needs torch 2.12 or later, whose varlen_attn reads block tables: that of 2.11 has no block_table, seqused_k"
    )


@pytest.mark.parametrize(
    ("machine", "shape", "words"),
    [
        (replace(H100, triton_version=None), SHAPE, "needs triton 3.6 or later, and none is installed"),
        (replace(H100, triton_version=(3, 5)), SHAPE, "and 3.5 is installed"),
        (replace(H100, capability=None), SHAPE, "the device's is unknown"),
        (H100, replace(SHAPE, dtype=torch.float64), "not in float64"),
        (H100, replace(SHAPE, key_size=8), "keys of 8 elements per head are outside 16 … 256"),
        (H100, replace(SHAPE, value_size=512), "values of 512 elements per head are outside 16 … 256"),
        (H100, replace(SHAPE, num_heads=9), "9 query heads cannot share 8 key heads evenly"),
        (H100, replace(SHAPE, num_heads=129, num_kv_heads=1), "129 query heads of 128 elements on one key head"),
    ],
)
def test_ours_says_what_it_can_not(machine, shape, words):
    assert words in BUILT_IN["triton"].supports(machine, shape)


@pytest.mark.parametrize(
    ("machine", "shape", "words"),
    [
        (replace(A100, capability=None), LARGE_BLOCKS, "the device's is unknown"),
        (T4, LARGE_BLOCKS, "needs compute capability 8.0 or higher, and the device's is 7.5"),
        (A100, replace(LARGE_BLOCKS, dtype=torch.float32), "not in float32"),
        (A100, replace(LARGE_BLOCKS, has_sinks=True), "sinks"),
        (A100, replace(LARGE_BLOCKS, looks_ahead=True), "behind it"),
        (A100, replace(LARGE_BLOCKS, value_size=64), "keys and values of one size, and these have 128 and 64"),
        (A100, replace(LARGE_BLOCKS, key_size=100, value_size=100), "multiples of 8 up to 256, and this is 100"),
        (A100, replace(LARGE_BLOCKS, key_size=264, value_size=264), "and this is 264"),
        (A100, replace(LARGE_BLOCKS, num_heads=9), "evenly"),
        (A100, SHAPE, "blocks of 16 tokens through cuDNN alone, which needs compute capability 9 or 10"),
        (replace(H100, has_cudnn_varlen=False), SHAPE, "does not offer in 9.24 or later"),
        (replace(H100, cudnn_version=92300), SHAPE, "does not offer in 9.24 or later"),
        (H100, replace(SHAPE, block_size=24), "which needs a power of two"),
        (H100, replace(SHAPE, window=4096), "which knows no windows"),
        (H100, replace(SHAPE, key_size=256, value_size=256), "head sizes up to 128, and this is 256"),
    ],
)
def test_torchs_own_says_what_it_can_not(machine, shape, words):
    assert words in BUILT_IN["varlen"].supports(machine, shape)


@pytest.mark.parametrize("shape", [LARGE_BLOCKS, replace(LARGE_BLOCKS, window=4096, key_size=256, value_size=256)])
def test_large_blocks_need_no_cudnn(shape):
    assert BUILT_IN["varlen"].supports(replace(A100, has_cudnn_varlen=False, cudnn_version=0), shape) is None


def test_a_named_backend_is_the_only_candidate():
    assert choose("sdpa", H100, [SHAPE], wants_graphs=True).candidates == ("sdpa",)


def test_a_named_backend_that_can_not_is_an_error_with_its_reason():
    with pytest.raises(
        InvalidSettings, match=r"attention_backend is triton, which .*: it runs on CUDA devices, not on cpu"
    ):
        choose("triton", CPU, [SHAPE])


def test_an_unknown_name_is_an_error_with_the_known_ones():
    with pytest.raises(InvalidSettings, match=r"'flash'; known are auto, triton, varlen, native, sdpa"):
        choose("flash", CPU, [SHAPE])


class Foreign(SdpaBackend):
    """A backend of somebody else."""

    name = "foreign"
    graph_support = GraphSupport.DECODE


def test_a_backend_from_elsewhere_is_taken_by_name_and_never_by_auto():
    factories = {**BUILT_IN, "foreign": Foreign}
    assert choose("foreign", CPU, [SHAPE], factories).candidates == ("foreign",)
    assert choose("auto", CPU, [SHAPE], factories).candidates == ("native",)
