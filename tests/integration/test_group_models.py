"""Groups of real ranks with the small trained model: they say what one worker says, asleep or killed in between."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from dormouse_api.v1 import worker_control_pb2 as control
from tests.integration.crawling import CRAWLING, crawling, own_copy
from tests.integration.test_groups import has_state, rank_pids
from tests.ports import free_port_pair

pytestmark = pytest.mark.timeout(600)

START_S = 240.0  # until ranks have torch, weights and a profile, on a machine that does much else
MAX_TOKENS = 24
LONG = [7 + step * 13 % 900 for step in range(150)]  # more than --max-num-batched-tokens: computed in chunks
PROMPTS = ([20, 21, 22, 23], LONG, [*LONG[:96], 5, 6], [300, 301])  # the third begins like the second
CARE = ("--rank-timeout", "20", "--engine-restart-window", "1")  # every death is the first: no longer waits
FLAGS = ("--kv-cache-memory", "16Mi", "--prefault-kv-cache", *CARE, *CRAWLING)
LEAST_RESIDUE = 64 << 20  # bytes; a process with torch keeps more
READY, PROFILED = control.WORKER_STATE_READY, control.WORKER_STATE_PROFILED


class Group:
    """A pod for each stage, real processes with real weights."""

    def __init__(self, start_worker, model, tensor, pipeline):
        place = ("--master-addr", "127.0.0.1", "--master-port", str(free_port_pair()))
        sizes = ("--tensor-parallel-size", str(tensor), "--pipeline-parallel-size", str(pipeline))
        flags = (*FLAGS, *place, *sizes)
        self.model = model
        pods = [start_worker(model, *flags, "--node-rank", str(ordinal)) for ordinal in range(pipeline)]
        self.leader, self.followers = pods[0], pods[1:]
        self.num_ranks = tensor * pipeline
        self.num_gpu_blocks = 0  # once agreed


FOUR_RANKS = pytest.param((2, 2), id="T2xP2", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[pytest.param((1, 2), id="P2"), FOUR_RANKS])
def group(request, start_worker, tiny_model, tmp_path_factory):
    model = own_copy(tiny_model, tmp_path_factory.mktemp("group") / "model")
    group = Group(start_worker, model, *request.param)
    group.leader.until(has_state(PROFILED), START_S)
    status = group.leader.start()
    group.num_gpu_blocks = status.num_gpu_blocks
    assert [rank.rank for rank in status.ranks] == list(range(request.param[0] * request.param[1]))
    return group


def answers(worker):
    """Return the greedy tokens of all prompts, asked at the same time."""
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        return list(threads.map(lambda prompt: worker.greedy(prompt, MAX_TOKENS), PROMPTS))


@pytest.fixture(scope="module")
def expected(worker):
    return answers(worker)


def test_a_group_says_what_one_worker_says_also_from_its_prefix_cache(group, expected):
    assert answers(group.leader) == expected
    assert answers(group.leader) == expected, "the blocks are known now"


@pytest.mark.parametrize("level", [1, 2])
def test_a_group_says_the_same_after_a_sleep_of_all_ranks(group, expected, level):
    slept = group.leader.operate("Sleep", control.SleepRequest(epoch=1, level=level))
    assert slept.state == control.WORKER_STATE_ASLEEP
    caches = [group.num_gpu_blocks * rank.report.block_bytes for rank in slept.ranks]
    assert slept.freed_bytes > 0.75 * sum(caches), "each rank's cache is gone; pages of files come and go"
    assert slept.residual_bytes > len(caches) * LEAST_RESIDUE, "each rank's interpreter and libraries are told of"
    group.leader.operate("WakeUp", control.WakeUpRequest(epoch=1))
    assert answers(group.leader) == expected


def test_a_group_with_a_killed_rank_comes_again_and_says_the_same(group, expected):
    os.kill(rank_pids(group.followers[-1], of_engine=False)[-1], signal.SIGKILL)
    group.leader.until(lambda status: status.state != READY)
    group.leader.until(has_state(PROFILED), START_S)
    group.leader.start()
    assert group.leader.status().last_engine_failure.reason == "RankLost"
    assert answers(group.leader) == expected


def test_a_rank_that_is_stopped_in_the_middle_of_a_stream_ends_its_group_which_says_the_same_again(group, expected):
    """Others wait for it in a collective."""
    with crawling(group.model):
        stream = group.leader.stream(PROMPTS[0], temperature=0, max_tokens=400, ignore_eos=True)
        next(stream)
        os.kill(rank_pids(group.followers[-1], of_engine=False)[-1], signal.SIGSTOP)
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    failure = group.leader.until(has_state(PROFILED), START_S).last_engine_failure
    assert (failure.reason, f"rank {group.num_ranks - 1}" in failure.message) == ("RankHung", True), failure.message
    group.leader.start()
    assert answers(group.leader) == expected


def test_ranks_that_can_not_share_the_heads_are_refused_with_the_numbers(start_worker, tiny_model):
    worker = start_worker(tiny_model, *FLAGS, "--tensor-parallel-size", "3")
    failure = worker.until(has_state(control.WORKER_STATE_FAILED), START_S).failure
    assert failure.reason == "InvalidSettings"
    words = "rank 0: tensor_parallel_size is 3; LlamaForCausalLM has 8 attention heads, which it must divide"
    assert words in failure.message
