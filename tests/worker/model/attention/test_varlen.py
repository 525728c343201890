"""Torch's own paged attention: what it is given, by an emulation of it that takes the same arguments."""

import inspect
from itertools import pairwise

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from dormouse_worker.model.attention.choose import refuse
from dormouse_worker.model.attention.interface import BackendSizes, GraphSupport
from dormouse_worker.model.attention.machine import Machine
from dormouse_worker.model.attention.varlen import PARAMETERS, VarlenBackend
from dormouse_worker.model.context import AttentionCall
from tests.gpu.attention_cases import check, make_cases, run_cases, sizes_of
from tests.gpu.attention_world import Case, World, textbook

H100 = Machine("cuda", (2, 15), (9, 0), (3, 9), 92600, PARAMETERS, has_cudnn_varlen=True)
A100 = Machine("cuda", (2, 15), (8, 0), (3, 9), 92600, PARAMETERS, has_cudnn_varlen=True)


def emulated(*args, **kwargs):
    """Compute what torch documents, on CPU. Raises TypeError for arguments that torch's function has not."""
    given = inspect.signature(varlen_attn).bind(*args, **kwargs).arguments
    assert given["cu_seq_k"] is None
    for name in ("cu_seq_q", "seqused_k", "block_table"):
        assert given[name].dtype == torch.int32
    left, right = given["window_size"]
    assert right == 0
    call = AttentionCall(0, given["scale"], None if left == -1 else left + 1)
    starts = given["cu_seq_q"].tolist()
    output = torch.empty_like(given["query"])
    lens = given["seqused_k"].tolist()
    assert (given["max_q"], given["max_k"]) == (max(b - a for a, b in pairwise(starts)), max(lens))
    for row, (start, end, length) in enumerate(zip(starts[:-1], starts[1:], lens, strict=True)):
        blocks = given["block_table"][row, : -(-length // given["key"].shape[1])].long()
        key, value = (given[name][blocks].flatten(0, 1)[:length].nan_to_num() for name in ("key", "value"))
        output[start:end] = textbook(call, given["query"][start:end], key, value, None).to(output.dtype)
    assert given["enable_gqa"] == (given["query"].shape[1] != given["key"].shape[2])
    return output


class Emulating(VarlenBackend):
    """The backend with an emulation in the place of torch's function."""

    def __init__(self, sizes: BackendSizes) -> None:
        super().__init__(sizes, emulated)


def on(machine):
    """Return the cases that such a machine can compute, all in half precision."""
    cases = [Case(**{**case.__dict__, "dtype": torch.float16}) for case in make_cases()]
    return [case for case in cases if refuse(VarlenBackend, machine, [case.shape]) is None]


@pytest.mark.parametrize("case", on(H100), ids=lambda case: case.name)
def test_it_asks_torch_for_the_formula(case):
    check(case, Emulating(sizes_of(case)), torch.device("cpu"))


@pytest.mark.parametrize("window", [1, 20])
def test_a_window_is_told_as_the_tokens_before_ones_own(window):
    case = Case("window", window=window, block_size=256, dtype=torch.float16)
    check(case, Emulating(sizes_of(case)), torch.device("cpu"))


def test_small_devices_take_large_blocks_alone():
    assert {case.block_size for case in on(A100)} == {256}


def test_a_refused_case_is_reported_and_not_tried():
    cases = [Case("sinks", has_sinks=True, dtype=torch.float16), Case("plain", dtype=torch.float16)]
    results = run_cases("varlen", Emulating, H100, torch.device("cpu"), cases)
    assert [(r.backend, r.case, r.error, r.refusal) for r in results] == [
        ("varlen", "sinks", None, "knows no attention sinks"),
        ("varlen", "plain", None, None),
    ]


def test_without_an_emulation_it_calls_torch_which_has_no_kernel_for_a_cpu():
    case = Case("any", dtype=torch.float16, block_size=256)
    world, backend = World(case, torch.device("cpu")), VarlenBackend(sizes_of(case))
    with pytest.raises(NotImplementedError):
        backend.plan(world.metadata, torch.device("cpu")).attend(world.call, world.query, world.layer)


def test_it_keeps_no_memory_and_no_graph():
    backend = VarlenBackend(sizes_of(Case("any")))
    backend.bind_workspace(torch.empty(0, dtype=torch.uint8))
    assert (backend.workspace_bytes(), backend.graph_support) == (0, GraphSupport.NEVER)
