"""Decode steps that are recorded and replayed: sizes, dummies, and that nothing but the buffers' values changes."""

import numpy as np
import pytest
import torch

from dormouse_worker.model.attention.interface import AttentionMetadata, GraphSupport
from dormouse_worker.model.batch_rows import BatchRows
from dormouse_worker.model.graphs import DecodeGraphs, graph_sizes
from dormouse_worker.model.input_batch import PackedInput

CPU = torch.device("cpu")
BLOCK_SIZE = 4


class Rerun:
    """Replays by doing the recorded work again, as a graph would: with the very same arguments."""

    def __init__(self, work):
        self.replay = work


class RerunMaker:
    """Implements `GraphMaker` where there are no graphs."""

    def __init__(self):
        self.num_runs = 0

    def record(self, work):
        self.num_runs += 1
        work()
        return Rerun(work)


class StubPlan:
    """A plan that keeps what it was last refreshed with."""

    def __init__(self, group, num_seqs):
        self.group, self.num_seqs, self.metadata = group, num_seqs, None

    def refresh(self, metadata):
        assert len(metadata.context_lens) <= self.num_seqs
        self.metadata = metadata


class StubBackend:
    """Implements `GraphBackend` for a model without attention."""

    name, graph_support = "stub", GraphSupport.DECODE

    def __init__(self):
        self.plans = []

    def graph_plan(self, group, num_seqs, device):
        assert device == CPU
        self.plans.append(StubPlan(group, num_seqs))
        return self.plans[-1]


class Model:
    """A forward pass whose logits are [token id, position, context length], and which counts its rows."""

    def __init__(self):
        self.num_rows = []

    def __call__(self, token_ids, positions, rows, plans):
        self.num_rows.append(len(rows))
        contexts = torch.zeros(len(rows))
        if plans[0].metadata is not None:
            known = torch.from_numpy(plans[0].metadata.context_lens)
            contexts[: len(known)] = known.float()
        return torch.stack([token_ids[rows].float(), positions[rows].float(), contexts], 1)


def decoding(*lengths, num_groups=1):
    """Return a pass in which sequence i has `lengths[i]` tokens, the last of which is 100 + i."""
    contexts = np.array(lengths, dtype=np.int64)
    starts = np.arange(len(lengths) + 1)
    tables = np.zeros((len(lengths), -(-max(lengths) // BLOCK_SIZE)), dtype=np.int64)
    metadata = AttentionMetadata(starts, contexts, tables, contexts - 1, contexts - 1, BLOCK_SIZE)
    return PackedInput(BatchRows(()), 100 + np.arange(len(lengths)), contexts - 1, starts, (metadata,) * num_groups)


def run(graphs, packed):
    return graphs.run(packed, torch.from_numpy(np.stack([packed.token_ids, packed.positions])))


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def graphs(model):
    graphs = DecodeGraphs(model, StubBackend(), (1, 2, 4, 8), CPU)
    graphs.record(RerunMaker(), 1)
    model.num_rows.clear()
    return graphs


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (20, (1, 2, 4, 8, 16, 20)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
    ],
)
def test_small_sizes_are_dense_and_the_largest_batch_has_a_graph(max_num_seqs, sizes):
    assert graph_sizes(max_num_seqs) == sizes


def test_very_large_batches_have_none():
    assert graph_sizes(4096)[-1] == 512


def test_the_largest_is_recorded_first_and_each_once(model):
    backend, maker = StubBackend(), RerunMaker()
    graphs = DecodeGraphs(model, backend, (1, 2, 4), CPU)
    graphs.record(maker, 2)
    assert model.num_rows == [4, 2, 1]
    assert maker.num_runs == 3
    assert [(plan.group, plan.num_seqs) for plan in backend.plans] == [(0, 4), (1, 4), (0, 2), (1, 2), (0, 1), (1, 1)]
    assert repr(graphs) == "DecodeGraphs(3 of sizes 1, 2, 4)"


@pytest.mark.parametrize(("num_seqs", "size"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_a_batch_runs_in_the_smallest_graph_that_holds_it(graphs, model, num_seqs, size):
    lengths = range(5, 5 + num_seqs)
    logits = run(graphs, decoding(*lengths))
    assert model.num_rows == [size]
    assert logits.tolist() == [[100.0 + i, length - 1.0, float(length)] for i, length in enumerate(lengths)]


def test_the_next_batch_finds_nothing_of_the_last(graphs):
    first = run(graphs, decoding(9, 8, 7)).clone()
    assert run(graphs, decoding(3, 2)).tolist() == [[100.0, 2.0, 3.0], [101.0, 1.0, 2.0]]
    assert torch.equal(run(graphs, decoding(9, 8, 7)), first)


def test_logits_lie_at_one_address(graphs):
    assert run(graphs, decoding(9, 8, 7)).data_ptr() == run(graphs, decoding(5)).data_ptr()


def test_only_a_step_of_decoding_alone_fits(graphs):
    decode = decoding(4, 5, 6)
    assert graphs.fits(decode, np.arange(3))
    assert not graphs.fits(decode, np.arange(2)), "not all rows are wanted"
    prefill = PackedInput(BatchRows(()), np.arange(4), np.arange(4), np.array([0, 3, 4]), decode.groups)
    assert not graphs.fits(prefill, np.array([2, 3]))


def test_more_than_the_largest_graph_does_not_fit(graphs):
    assert not graphs.fits(decoding(*range(1, 10)), np.arange(9))


def test_before_anything_is_recorded_nothing_fits(model):
    graphs = DecodeGraphs(model, StubBackend(), (1, 2), CPU)
    assert not graphs.fits(decoding(4), np.arange(1))
