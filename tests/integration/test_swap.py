"""One model's engine in the place of another's, in a worker of real processes: tokens tell which model computes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import grpc
import pytest

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.conftest import EPOCH
from tests.integration.test_sleep_faults import begin, code_of
from tests.waiting import wait_for

FLAGS = ("--max-model-len", "64", "--max-num-batched-tokens", "32", "--block-size", "8")
PROMPT = list(range(10, 43))
ASLEEP, PROFILED, READY = control.WORKER_STATE_ASLEEP, control.WORKER_STATE_PROFILED, control.WORKER_STATE_READY
NEW = {"settings_digest": "new", "timeout_seconds": 120}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models of random weights."""
    return [write_tiny_model(tmp_path_factory.mktemp("random"), seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A model whose weights lack a layer that its configuration promises: only the engine can tell."""
    path = write_tiny_model(tmp_path_factory.mktemp("broken"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] + 1}))
    return path


@pytest.fixture(scope="module")
def steady(start_worker, models):
    """A worker with the second model that every test leaves as it was."""
    worker = start_worker(models[1], *FLAGS, "--engine-restart-window", "0")
    worker.start()
    return worker


@pytest.fixture
def worker(start_worker, models):
    """A worker with the first model that a test may change for good."""
    worker = start_worker(models[0], *FLAGS)
    worker.start()
    return worker


def order(worker, *changes, **fields):
    """Return a swap to the worker's own command line with these changes: of a flag that stands twice the last holds."""
    return control.SwapEngineRequest(epoch=EPOCH, arguments=[*worker.arguments, *changes], **{**NEW, **fields})


def second_engine_of(worker):
    """Return the process id of the engine that is to replace the first one, as soon as it is there.

    Not sooner: a front waits for a child that it forked to run its program, and would for ever if that was stopped.
    """
    first = worker.engine()
    worker.until(lambda status: status.state == ASLEEP)
    others = wait_for(lambda: [pid for pid in worker.running_engines() if pid != first], "no second engine was started")
    return others[0]


def test_a_swapped_worker_says_what_the_other_model_says_and_the_old_engine_is_gone(worker, steady, models):
    expected = steady.greedy(PROMPT, 16)
    assert worker.greedy(PROMPT, 16) != expected
    old = worker.children()
    status = worker.operate("SwapEngine", order(worker, "--model", str(models[1])), 180)
    assert (status.state, status.settings_digest, status.swapping_to) == (PROFILED, "new", "")
    assert status.model_digest == steady.status().model_digest
    assert status.report.num_gpu_blocks > 0
    assert len(worker.children()) == 1
    assert not set(old) & set(worker.children())
    assert worker.start().state == READY
    assert worker.greedy(PROMPT, 16) == expected


def test_a_model_that_can_not_be_loaded_leaves_the_old_one_which_says_what_it_said_before(steady, broken):
    expected, old = steady.greedy(PROMPT, 16), steady.children()
    before = steady.status()
    for changes, reason in {
        ("--model", str(broken)): "ModelInvalid",
        ("--kv-cache-memory", "1Ki"): "InsufficientMemory",
    }.items():
        with pytest.raises(grpc.RpcError) as caught:
            steady.operate("SwapEngine", order(steady, *changes), 180)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert f"({reason}); the engine before is ready again" in caught.value.details()
        after = steady.status()
        assert (after.state, after.settings_digest) == (READY, before.settings_digest)
        assert after.num_gpu_blocks == before.num_gpu_blocks
        assert steady.children() == old
        assert steady.greedy(PROMPT, 16) == expected


def test_an_old_engine_killed_in_the_middle_is_started_again_when_the_new_one_is_killed_too(steady, models):
    expected = steady.greedy(PROMPT, 16)
    digest = steady.status().settings_digest
    (old,) = steady.children()
    swapping = begin(steady, "SwapEngine", arguments=[*steady.arguments, "--model", str(models[0])], **NEW)
    new = second_engine_of(steady)
    os.kill(new, signal.SIGSTOP)  # it is in the middle of its start whenever the other's end is noticed
    os.kill(old, signal.SIGKILL)
    steady.until(lambda status: status.state == control.WORKER_STATE_STARTING)
    for pid in steady.children():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(grpc.RpcError) as caught:
        swapping.result()
    assert "(EngineDied); the engine before died meanwhile and is started again" in caught.value.details()
    status = steady.start()
    assert (status.state, status.settings_digest) == (READY, digest)
    assert steady.greedy(PROMPT, 16) == expected


def test_a_worker_that_ends_in_the_middle_leaves_no_engine(worker, models):
    swapping = begin(worker, "SwapEngine", arguments=[*worker.arguments, "--model", str(models[1])], **NEW)
    both = [worker.engine(), second_engine_of(worker)]
    worker.process.terminate()
    assert worker.process.wait(timeout=90) == 0
    assert code_of(swapping) in {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE}
    assert not [pid for pid in both if Path(f"/proc/{pid}").exists()]
