"""Two real workers on one stand-in device, as two models on one GPU: whose turn it is, and what the books say of it."""

from __future__ import annotations

import os
import select

import pytest

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.device.ledger_file import offer_device, read_usage
from dormouse_worker.model.device.stand_in import CONTEXT_BYTES
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.conftest import EPOCH
from tests.integration.test_sleep import refusal, sleep, wake

MIB = 1 << 20
TOTAL, CACHE = 256 * MIB, 128 * MIB  # of two caches there is room for one
READY, ASLEEP = control.WORKER_STATE_READY, control.WORKER_STATE_ASLEEP
FLAGS = ("--device", "cuda", "--kv-cache-memory", str(CACHE), "--max-model-len", "64", "--max-num-batched-tokens", "32")
PROMPT = list(range(10, 43))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def start_on(start_worker, model):
    """Start workers that see one stand-in device, and have them take their cache."""

    def start(folder):
        worker = start_worker(model, *FLAGS, prefix=["env", f"STAND_IN_DEVICES={folder.parent}"])
        blocks = worker.report().num_gpu_blocks
        request = control.InitializeCacheRequest(epoch=EPOCH, num_gpu_blocks=blocks)
        assert worker.operate("InitializeCache", request).state == READY
        return worker

    return start


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The device of the pair."""
    folder = tmp_path_factory.mktemp("devices") / "gpu-0"
    offer_device(folder, TOTAL)
    return folder


@pytest.fixture(scope="module")
def pair(start_on, folder):
    """Two workers: A went to sleep so that B could start, and was woken when B slept."""
    a = start_on(folder)
    assert sleep(a).state == ASLEEP
    b = start_on(folder)
    assert sleep(b).state == ASLEEP
    assert wake(a).state == READY
    return a, b


def test_the_profile_is_of_the_stand_in(pair):
    report = pair[0].report()
    assert (report.device, report.total_bytes) == ("gpu-0", TOTAL)
    assert report.non_torch_bytes == CONTEXT_BYTES


def test_who_wakes_beside_another_is_refused_with_what_is_missing_and_takes_nothing(pair, folder):
    a, b = pair
    before = read_usage(folder).books
    missing_bytes = b.operate("PrepareWakeUp", control.PrepareWakeUpRequest(epoch=EPOCH)).missing_bytes
    weights_bytes = -(-b.report().weights_bytes // (2 * MIB)) * 2 * MIB
    assert missing_bytes == CACHE + weights_bytes - before.free_bytes
    _, words = refusal(b, "WakeUp", control.WakeUpRequest(epoch=EPOCH))
    assert str(missing_bytes) in words
    assert read_usage(folder).books == before, "not even the marks moved"
    assert b.status().state == ASLEEP
    assert len(a.greedy(PROMPT, 4)) == 4


def test_the_device_changes_hands_and_each_answers_as_before(pair, folder):
    a, b = pair
    expected = a.greedy(PROMPT, 8)
    for level in (1, 2):
        for sleeper, waker in ((a, b), (b, a)):
            assert sleep(sleeper, level).residual_bytes == CONTEXT_BYTES
            assert read_usage(folder).books.used_bytes == 2 * CONTEXT_BYTES
            assert wake(waker).state == READY
            assert waker.greedy(PROMPT, 8) == expected
    usage = read_usage(folder)
    assert (usage.marks.most_awake, usage.marks.over_size_bytes, usage.violations) == (1, 0, ())
    assert CACHE < usage.marks.highest_bytes <= TOTAL


def test_a_worker_that_is_killed_gives_everything_back(start_on, tmp_path):
    offer_device(tmp_path / "gpu-0", TOTAL)
    worker = start_on(tmp_path / "gpu-0")
    assert read_usage(tmp_path / "gpu-0").books.used_bytes > CACHE
    ended = os.pidfd_open(worker.engine())
    worker.process.kill()
    assert select.select([ended], [], [], 60)[0], "an engine does not outlive its front"
    os.close(ended)
    assert read_usage(tmp_path / "gpu-0").books.rows == {}
