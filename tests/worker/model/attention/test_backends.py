"""The backends against the textbook formula, by one table of cases: the reference here, our kernels interpreted."""

from dataclasses import replace

import pytest
import torch

from dormouse_worker.model.attention.interface import GraphSupport
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.cache_rows import MOST
from tests.gpu.attention_cases import check, make_cases, run_all, sizes_of
from tests.gpu.attention_world import Case, World
from tests.worker.model.attention.interpreted import INDEPENDENCE, MODEL

CASES = {case.name: case for case in make_cases()}


@pytest.mark.parametrize("name", CASES)
def test_the_reference_computes_the_formula(name):
    case = CASES[name]
    check(case, SdpaBackend(sizes_of(case)), torch.device("cpu"))


@pytest.mark.parametrize("stored", MOST)
@pytest.mark.parametrize("name", CASES)
def test_the_reference_computes_the_formula_of_a_cache_of_8_bits(name, stored):
    case = replace(CASES[name], stored=stored)
    check(case, SdpaBackend(sizes_of(case)), torch.device("cpu"))


@pytest.mark.parametrize("name", CASES)
def test_our_kernels_compute_the_formula(interpreter, name):
    assert interpreter.error_of(name) is None


def test_our_kernels_give_a_sequence_the_same_bits_in_any_batch(interpreter):
    assert interpreter.error_of(INDEPENDENCE) is None


@pytest.mark.parametrize("architecture", ["gemma2", "ministral", "deepseek_v3"])
def test_a_model_on_our_kernels_says_what_transformers_says(interpreter, architecture):
    """Soft-cap and windows; layer groups; values smaller than keys."""
    assert interpreter.error_of(MODEL + architecture) is None


def test_the_program_for_a_gpu_runs_here_too_and_says_what_it_leaves_out():
    results = run_all("cpu", [*CASES.values()][:3])
    assert [result for result in results if result.error] == []
    ours = {result.backend for result in results if result.refusal is None}
    assert ours - {"native"} == {"sdpa"}  # the kernels may not be compiled
    refusals = {result.refusal for result in results if result.backend not in {"native", "sdpa"}}
    assert refusals == {"runs on CUDA devices, not on cpu"}


def test_the_reference_keeps_no_memory_and_no_graph():
    backend = SdpaBackend()
    assert (backend.workspace_bytes(), backend.graph_support) == (0, GraphSupport.NEVER)
    backend.bind_workspace(torch.empty(0, dtype=torch.uint8))


class Wrong:
    """The reference with one number too much: in its answer, or in the cache."""

    graph_support = GraphSupport.NEVER

    def __init__(self, where):
        self.where = where

    def plan(self, metadata, device):
        self.plan, self.used = SdpaBackend().plan(metadata, device), set(metadata.slot_mapping.tolist())
        return self

    def write(self, layer, key, value):
        self.plan.write(layer, key, value)
        if self.where == "cache":
            layer.value[min(set(range(len(layer.value))) - self.used), 0, 0] = 7

    def attend(self, *args):
        output = self.plan.attend(*args)
        if self.where == "answer":
            output[-1, -1, -1] += 1e-3
        return output


@pytest.mark.parametrize("where", ["answer", "cache"])
def test_the_check_sees_one_wrong_number(where):
    with pytest.raises(AssertionError, match=r"not close|not equal"):
        check(Case("any", spans=((0, 9), (20, 21)), seed=1), Wrong(where), torch.device("cpu"))


def test_the_cases_reach_what_they_are_for():
    """Contexts longer than a block, chunks behind a context, decoding sequences beside them."""
    world = World(Case("any"), torch.device("cpu"))
    assert (world.metadata.query_lens == 1).any()
    assert ((world.metadata.query_lens > 1) & (world.metadata.context_lens > world.metadata.query_lens)).any()
    assert world.metadata.block_tables.shape[1] > 1
