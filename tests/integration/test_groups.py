"""Groups of real processes: a leading front, a following one, and ranks that need no torch."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from dormouse_api.names import INFERENCE_SERVICE
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.engine.testing import next_token
from dormouse_worker.executor.testing_ranks import FAKE_RANK, order_ranks
from dormouse_worker.model.testing import write_tiny_model
from tests.name_service import NameService
from tests.ports import free_port_pair

WAIT_S = 150.0
PROMPT = [1, 2, 3]
FLAGS = ("--max-model-len", "32", "--block-size", "4", "--worker-cls", FAKE_RANK)
CARE = ("--rank-timeout", "15", "--engine-restart-window", "1")  # every death is the first: no longer waits
READY, PROFILED = control.WORKER_STATE_READY, control.WORKER_STATE_PROFILED


def expected(count):
    """Return what the fake ranks' tokens are."""
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + count:
        tokens.append(next_token(tokens))
    return tokens[len(PROMPT) :]


def has_state(state):
    return lambda status: status.state == state


def rank_pids(worker, *, of_engine):
    """Return the rank processes of a front: its engine's children, or a follower's own."""
    parents = children(worker.process.pid) if of_engine else [worker.process.pid]
    return [pid for parent in parents for pid in children(parent)]


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_and_agree_again(leader, pid, number=signal.SIGKILL):
    """End a process of the group; return the leader's status once a new group has the same agreement."""
    os.kill(pid, number)
    leader.until(lambda status: status.state != READY)
    leader.until(has_state(PROFILED))
    return leader.start()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("group"))


class Group:
    """Two pods of one rank each."""

    def __init__(self, start_worker, model):
        self.model = model
        self._start_worker = start_worker
        port = str(free_port_pair())
        place = ("--master-addr", "127.0.0.1", "--master-port", port, "--pipeline-parallel-size", "2")
        self._flags = (*FLAGS, *CARE, *place)
        self.leader = start_worker(model, *self._flags)
        self.follower = self.start_follower()

    def start_follower(self):
        return self._start_worker(self.model, *self._flags, "--node-rank", "1")


def start_leader(start_worker, model, *flags):
    """Return the first pod of a group of two, and how to start the second."""
    place = ("--master-addr", "127.0.0.1", "--master-port", str(free_port_pair()), "--pipeline-parallel-size", "2")
    flags = (*FLAGS, *CARE, *place, *flags)
    return start_worker(model, *flags), lambda: start_worker(model, *flags, "--node-rank", "1")


@pytest.fixture(scope="module")
def group(start_worker, model):
    group = Group(start_worker, model)
    group.leader.start()
    return group


@pytest.fixture(autouse=True)
def obedient(model):
    yield
    order_ranks(model)


def test_two_pods_serve_as_one_and_the_leader_tells_of_all_ranks(group):
    assert group.leader.greedy(PROMPT, 6) == expected(6)
    status = group.leader.status()
    assert [(rank.rank, rank.report.num_gpu_blocks) for rank in status.ranks] == [(0, 10), (1, 10)]
    follower = group.follower.until(has_state(READY))  # it may hear of it later than who asked for it
    assert (follower.node_rank, [rank.rank for rank in follower.ranks]) == (1, [1])
    assert group.follower.health(INFERENCE_SERVICE) == 2, "NOT_SERVING: nobody sends requests there"
    assert group.follower.health("") == 1
    assert group.follower.page("readyz") == "ok\n"
    assert "dormouse_ranks_joined 1.0" in group.follower.page()


def test_a_follower_takes_no_commands(group):
    with pytest.raises(grpc.RpcError) as caught:
        group.follower.operate("Sleep", control.SleepRequest(epoch=1, level=1))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_group_sleeps_and_wakes_as_one(group):
    slept = group.leader.operate("Sleep", control.SleepRequest(epoch=1, level=2))
    assert (slept.state, slept.freed_bytes) == (control.WORKER_STATE_ASLEEP, 200)
    order_ranks(group.model, rank1={"refuse": ["wake_up"]})
    with pytest.raises(grpc.RpcError) as caught:
        group.leader.operate("WakeUp", control.WakeUpRequest(epoch=1))
    assert (caught.value.code(), "rank 1" in caught.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    assert group.leader.status().state == control.WORKER_STATE_ASLEEP
    order_ranks(group.model)
    group.leader.operate("WakeUp", control.WakeUpRequest(epoch=1))
    assert group.leader.greedy(PROMPT, 6) == expected(6)


@pytest.mark.parametrize("of_engine", [True, False], ids=["leader", "follower"])
def test_a_killed_rank_ends_the_group_which_begins_anew(group, of_engine):
    pod = group.leader if of_engine else group.follower
    (pid,) = rank_pids(pod, of_engine=of_engine)
    kill_and_agree_again(group.leader, pid)
    status = group.leader.status()
    assert status.last_engine_failure.reason == "RankLost"
    assert f"rank {0 if of_engine else 1}" in status.last_engine_failure.message
    assert group.leader.greedy(PROMPT, 6) == expected(6)


def test_a_stopped_rank_ends_the_group_at_the_deadline(group):
    (pid,) = rank_pids(group.follower, of_engine=False)
    status = kill_and_agree_again(group.leader, pid, signal.SIGSTOP)
    assert status.last_engine_failure.reason == "RankHung"
    assert "rank 1" in status.last_engine_failure.message
    assert "no sign of life for 15 s" in status.last_engine_failure.message
    assert group.leader.greedy(PROMPT, 6) == expected(6)


def test_a_killed_engine_takes_all_ranks_with_it_and_they_come_again(group):
    (engine,) = children(group.leader.process.pid)
    ranks = [*rank_pids(group.leader, of_engine=True), *rank_pids(group.follower, of_engine=False)]
    kill_and_agree_again(group.leader, engine)
    now = [*rank_pids(group.leader, of_engine=True), *rank_pids(group.follower, of_engine=False)]
    assert not set(ranks) & set(now)
    assert group.leader.greedy(PROMPT, 6) == expected(6)


def test_a_request_that_a_dying_rank_interrupts_may_be_continued_elsewhere(group):
    order_ranks(group.model, rank1={"die": ["execute_model"]})
    with pytest.raises(grpc.RpcError) as caught:
        list(group.leader.stream(PROMPT, temperature=0, max_tokens=20))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    order_ranks(group.model)
    group.leader.until(has_state(PROFILED))
    group.leader.start()


def test_a_rank_that_dies_in_the_middle_of_a_wake_leaves_nothing_half_awake(group):
    group.leader.operate("Sleep", control.SleepRequest(epoch=1, level=2))
    order_ranks(group.model, rank1={"die": ["wake_up"]})
    with pytest.raises(grpc.RpcError) as caught:
        group.leader.operate("WakeUp", control.WakeUpRequest(epoch=1))
    assert "rank 1" in caught.value.details()
    order_ranks(group.model)
    status = group.leader.until(has_state(PROFILED))
    assert status.last_engine_failure.reason == "RankLost"
    group.leader.start()
    assert group.leader.greedy(PROMPT, 6) == expected(6)


def test_a_rank_that_comes_too_late_is_named_and_is_in_time_for_the_next_attempt(start_worker, model):
    leader, start_follower = start_leader(start_worker, model, "--group-start-timeout", "10")
    failure = leader.until(lambda status: status.last_engine_failure.reason).last_engine_failure
    assert failure.reason == "RankMissing"
    missing = re.search(r"of 2 ranks these did not come within 10 s: ([01, ]+)", failure.message)
    assert missing[1] in {"1", "0, 1"}, "its own may be as late on a machine that does much else"
    start_follower()
    leader.until(has_state(PROFILED))
    leader.start()
    assert leader.greedy(PROMPT, 6) == expected(6)


def test_pods_wait_for_a_leader_whose_name_is_not_known_yet(start_worker, model, tmp_path):
    port = str(free_port_pair())
    place = ("--master-addr", "leader.group.svc", "--master-port", port, "--pipeline-parallel-size", "2")
    with ExitStack() as stack:
        pods = []
        for node_rank in ("0", "1"):
            folder = tmp_path / node_rank
            folder.mkdir()
            names = stack.enter_context(NameService.running(folder))
            names.deny()
            pod = start_worker(model, *FLAGS, *CARE, *place, "--node-rank", node_rank, prefix=names.prefix)
            pods.append((pod, names))
        for _, names in pods:
            names.await_questions("leader", 4, timeout_s=WAIT_S)  # each attempt asks for addresses of two kinds
            names.tell("127.0.0.1")
        leader, _ = pods[0]
        assert not leader.until(has_state(PROFILED)).last_engine_failure.reason
        leader.start()
        assert leader.greedy(PROMPT, 6) == expected(6)


def test_a_taken_port_is_told_and_taken_once_it_is_free(start_worker, model):
    port = free_port_pair()
    with socket.create_server(("127.0.0.1", port + 1)):
        leader, start_follower = start_leader(start_worker, model, "--master-port", str(port))
        status = leader.until(lambda status: status.last_engine_failure.reason)
        assert status.last_engine_failure.reason == "GroupPortTaken"
        assert (
            f"127.0.0.1 port {port + 1} for the other ranks (--master-port + 1)" in status.last_engine_failure.message
        )
    start_follower()
    leader.until(has_state(PROFILED))
    leader.start()
    assert leader.greedy(PROMPT, 6) == expected(6)


def test_a_followers_whole_pod_may_be_replaced(group):
    (rank,) = rank_pids(group.follower, of_engine=False)
    rank_ended = os.pidfd_open(rank)
    group.follower.process.kill()
    readable, _, _ = select.select([rank_ended], [], [], WAIT_S)
    os.close(rank_ended)
    assert readable, "no rank outlives its front"
    group.follower = group.start_follower()
    group.leader.until(lambda status: status.state != READY)
    group.leader.until(has_state(PROFILED))
    group.leader.start()
    assert group.leader.greedy(PROMPT, 6) == expected(6)


def test_a_follower_that_is_told_to_end_keeps_its_ranks_until_the_leader_has_ended(start_worker, model):
    group = Group(start_worker, model)
    group.leader.start()
    ranks = rank_pids(group.follower, of_engine=False)
    group.follower.process.terminate()
    group.follower.until(has_state(control.WORKER_STATE_DRAINING))
    assert group.leader.greedy(PROMPT, 6) == expected(6)
    assert rank_pids(group.follower, of_engine=False) == ranks
    group.leader.process.terminate()
    assert group.leader.process.wait(WAIT_S) == 0
    assert group.follower.process.wait(WAIT_S) == 0
