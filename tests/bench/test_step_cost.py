"""The measured step is one in which every sequence decodes, and every part of it is counted."""

from __future__ import annotations

import pytest
import torch

from bench.step_cost import make_bench, measure_step_ms
from dormouse_worker.model.testing import write_tiny_model

NUM_SEQS = 8


@pytest.fixture(autouse=True)
def _threads():
    """The bench computes on one thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("llama"), "llama")


def test_every_sequence_gets_one_token_in_the_measured_step(model):
    bench = make_bench(model, NUM_SEQS, 3, prompt_tokens=16, sampling={})
    for _ in range(3):
        bench.step()
        assert bench.executor.num_tokens == NUM_SEQS


def test_all_parts_of_the_cost_are_counted(model):
    cost = measure_step_ms(model, num_seqs=NUM_SEQS, num_steps=3, prompt_tokens=16)
    assert min(cost.engine_ms, cost.prepare_ms, cost.sample_ms) > 0
    assert cost.total_ms == cost.engine_ms + cost.prepare_ms + cost.sample_ms
