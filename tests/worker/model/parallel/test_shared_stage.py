"""Ranks of a stage add up and gather through memory that they share: exact, of any size; nobody waits for the dead."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dormouse_worker.common.layout import Layout
from dormouse_worker.model.parallel import shared_stage
from dormouse_worker.model.parallel.shared_stage import share
from dormouse_worker.native.library import Missing

SLOT = 1 << 18
PATIENT_S, IMPATIENT_S = 60.0, 0.05


class Rendezvous:
    """Where ranks that are threads tell each other words and sums, as a group's store and sockets do."""

    def __init__(self, num_ranks):
        self._words, self._told = {}, threading.Condition()
        self._barrier = threading.Barrier(num_ranks)
        self._brought = []

    def set(self, key, value):
        with self._told:
            self._words[key] = value.encode()
            self._told.notify_all()

    def get(self, key):
        with self._told:
            self._told.wait_for(lambda: key in self._words)
        return self._words[key]

    def sum_up(self, tensor):
        self._brought.append(tensor)
        self._barrier.wait()
        return sum(self._brought)


@pytest.fixture
def shared_by(loaded_kernels):
    """Return a function (number of ranks, seconds to wait) → their views of one memory."""
    made = []

    def make(num_ranks, timeout_s=PATIENT_S):
        store = Rendezvous(num_ranks)
        layouts = [Layout(num_ranks, 1, rank) for rank in range(num_ranks)]
        made.extend(together(layouts, lambda layout: share(layout, store, store.sum_up, timeout_s, loaded_kernels)))
        return made

    yield make
    for shared in made:
        shared.close()


def together(items, work):
    """Do it for all items at the same time; return the results in order."""
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(work, items))


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 896, SLOT, 2 * SLOT + 5])
def test_all_ranks_get_the_same_sum(shared_by, num_ranks, count):
    ranks = shared_by(num_ranks)
    brought = [torch.randn(count) for _ in ranks]
    expected = sum(brought[1:], brought[0].clone())
    together(list(zip(ranks, brought, strict=True)), lambda pair: pair[0].sum_up(pair[1]))
    assert all(torch.equal(tensor, expected) for tensor in brought)


def test_one_exchange_after_the_other_mixes_nothing_up(shared_by):
    def work(pair):
        shared, number = pair
        for step in range(500):
            tensor = torch.full((7,), float(number * step))
            shared.sum_up(tensor)
            assert tensor.tolist() == [float(3 * step)] * 7

    together(list(zip(shared_by(3), (0, 1, 2), strict=True)), work)


@pytest.mark.parametrize("shape", [(1, 1), (3, 50), (1, 3, 50), (64, 1000), (600, 901), (3, SLOT + 3)], ids=str)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_the_first_rank_gets_all_rows_side_by_side(shared_by, shape, num_ranks):
    ranks = shared_by(num_ranks)
    brought = [torch.randn(shape) for _ in ranks]
    first, *_ = together(list(zip(ranks, brought, strict=True)), lambda pair: pair[0].gather(pair[1]))
    assert torch.equal(first, torch.cat(brought, -1))


def test_a_rank_that_does_not_come_is_waited_for_so_long_and_finds_nobody_later(shared_by):
    late, waiting = shared_by(2, IMPATIENT_S)
    for rank in (waiting, late):
        with pytest.raises(TimeoutError, match="a rank did not come in time"):
            rank.sum_up(torch.zeros(3))


def test_a_rank_that_ended_is_not_waited_for(shared_by):
    first, _ = shared_by(2)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        descriptor = os.pidfd_open(process.pid)
        first._stage.others[0] = descriptor
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(first.sum_up, torch.zeros(3))
            process.kill()
            with pytest.raises(TimeoutError, match="a rank's process has ended"):
                waiting.result()
    os.close(descriptor)


@pytest.mark.parametrize("unable", [0, 1])
def test_if_one_rank_can_not_nobody_does(loaded_kernels, unable):
    store = Rendezvous(2)

    def work(rank):
        own = Missing("there are none") if rank == unable else loaded_kernels
        return share(Layout(2, 1, rank), store, store.sum_up, PATIENT_S, own)

    assert together([0, 1], work) == [None, None]


def test_memory_of_another_pods_process_of_the_same_number_is_not_taken():
    """Its number and size fit, what it ends with does not."""
    with shared_stage._memory_of(Layout(2, 1, 0), store := Rendezvous(1), 4096) as memory:
        where = store.get("memory of stage 0").decode()
        assert shared_stage._open(where, 4096)[:] == memory[:]
        path, token = where.split()
        assert shared_stage._open(f"{path} {token[::-1]}", 4096) is None
        assert shared_stage._open(where, 8192) is None
    assert shared_stage._open(where, 4096) is None
    assert shared_stage._open("", 4096) is None
