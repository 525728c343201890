"""Ranks that are processes, over gloo: they find each other, compute together, and notice when one is gone."""

import socket

import pytest
import torch

from dormouse_worker.common.errors import InvalidSettings, RankLost
from dormouse_worker.common.layout import Layout
from dormouse_worker.executor import testing_rank
from dormouse_worker.executor.testing import make_settings
from dormouse_worker.model.parallel.communicator import ALONE
from dormouse_worker.model.parallel.start import connect, connect_from_environment
from dormouse_worker.model.testing import reference_generate, write_tiny_model
from dormouse_worker.native.library import Missing, load_kernels
from tests.ports import free_port
from tests.worker.forked import Forked

CPU = torch.device("cpu")
DEADLINE_S = 400  # of what imports torch, and of four processes, on a machine that does much else
PROMPT = [5, 6, 7, 8, 9]
MANY_TOKENS = 10


@pytest.fixture
def port():
    """Return a port that nobody listens on."""
    return free_port()


@pytest.fixture
def spawn(port):
    """Return a function that starts a rank of a group as a process; none outlives the test."""
    ranks = []
    environ = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DORMOUSE_GROUP_TIMEOUT_S": "60",
        "GLOO_SOCKET_IFNAME": "lo",
    }

    def start(function, rank, *arguments):
        ranks.append(Forked(function, rank, *arguments, environ=environ))
        return ranks[-1]

    yield start
    for rank in ranks:
        rank.close()


@pytest.mark.timeout(DEADLINE_S)
def test_ranks_that_are_processes_say_what_one_says(tmp_path, spawn):
    directory = write_tiny_model(tmp_path / "model", "llama", num_hidden_layers=3)
    tensor = pipeline = 2
    ranks = [
        spawn(testing_rank.generate, rank, directory, tensor, pipeline, PROMPT, MANY_TOKENS)
        for rank in range(tensor * pipeline)
    ]
    told = [rank.answer(DEADLINE_S) for rank in ranks]
    expected = {"before": reference_generate(directory, PROMPT, MANY_TOKENS)}
    expected["after"] = expected["before"]
    samples = [Layout(tensor, pipeline, rank).samples for rank in range(len(ranks))]
    assert told == [expected if one else {"before": [], "after": []} for one in samples]


@pytest.mark.timeout(DEADLINE_S)
def test_a_rank_that_ends_is_noticed_by_those_that_wait_for_it(spawn):
    waiting, leaving = spawn(testing_rank.wait, 0), spawn(testing_rank.leave, 1)
    told = waiting.answer(DEADLINE_S)
    leaving.process.join(DEADLINE_S)
    assert leaving.process.exitcode == testing_rank.EXIT_CODE
    assert told.startswith("RankLost: rank 0 of 2: all_reduce failed, with up to 60 s to wait:")
    if not isinstance(load_kernels(), Missing):
        assert "a rank's process has ended" in told, "they share memory"


def test_ranks_that_do_not_come_are_named(port):
    with pytest.raises(RankLost, match=rf"rank 0 of 4: rank 1, 2, 3 did not come to 127.0.0.1:{port} within 0.5 s"):
        connect(Layout(2, 2, 0), "127.0.0.1", port, 0.5)


def test_a_store_that_nobody_holds_is_named(port):
    with pytest.raises(RankLost, match=f"rank 1: rank 0 is not reached at 127.0.0.1:{port}"):
        connect(Layout(2, 1, 1), "127.0.0.1", port, 0.5)


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(InvalidSettings, match=f"rank 0 cannot listen on 127.0.0.1:{taken}: .*in use"):
            connect(Layout(2, 1, 0), "127.0.0.1", taken, 0.5)


def test_one_rank_needs_nobody():
    assert connect(Layout(), "nowhere", 0, 1) is ALONE


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "MASTER_ADDR is '' and MASTER_PORT ''; a group of 2 ranks needs an address and a port"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "70000"}, "MASTER_PORT '70000'"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "1", "DORMOUSE_GROUP_TIMEOUT_S": "0"}, "DORMOUSE_GROUP_TIMEOUT_S is '0'"),
    ],
)
def test_a_bad_environment_is_named(environ, message):
    with pytest.raises(InvalidSettings, match=message):
        connect_from_environment(Layout(2, 1, 0), CPU, environ)


def test_a_rank_outside_of_its_group_is_named(tmp_path):
    from dormouse_worker.executor.worker.cpu_worker import CpuWorker

    settings = make_settings(tmp_path, tensor_parallel_size=2, pipeline_parallel_size=2)
    with pytest.raises(InvalidSettings, match="rank is 4; a group of 4 has 0 to 3"):
        CpuWorker(settings, 4)
