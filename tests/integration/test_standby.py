"""Workers that share one stand-in device under grants, and the end of engines: who runs, and what the books say."""

from __future__ import annotations

import os
import select
import signal

import pytest

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.device.ledger_file import offer_device, read_usage
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.conftest import EPOCH
from tests.integration.test_sleep import refusal, sleep, wake

MIB = 1 << 20
TOTAL, BUDGET = 192 * MIB, 128 * MIB  # of two awake there is room for one
READY, ASLEEP, STANDBY = (getattr(control, f"WORKER_STATE_{state}") for state in ("READY", "ASLEEP", "STANDBY"))
LONG_LEN = 16384  # tokens of a stream that takes the engine seconds
FLAGS = ("--device", "cuda", "--max-model-len", str(LONG_LEN), "--max-num-batched-tokens", "32")
PROMPT = list(range(10, 43))
ABORTED = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("random"), max_position_embeddings=LONG_LEN)


@pytest.fixture(scope="module")
def start_on(start_worker, model):
    """Start workers that see the devices of a folder."""

    def start(folder, *flags):
        return start_worker(model, *FLAGS, *flags, prefix=["env", f"STAND_IN_DEVICES={folder}"])

    return start


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The device of the pair."""
    device = tmp_path_factory.mktemp("devices") / "gpu-0"
    offer_device(device, TOTAL)
    return device


@pytest.fixture(scope="module")
def pair(start_on, device):
    """Two workers that wait for their turns."""
    return [start_on(device.parent, "--device-grants") for _ in range(2)]


def grant(worker, slot_epoch, **fields):
    words = {"slot": "pool-0", "budget_bytes": BUDGET, "device": "gpu.dormouse.dev/node-1/gpu-0", **fields}
    return worker.operate("GrantDevice", control.GrantDeviceRequest(epoch=EPOCH, slot_epoch=slot_epoch, **words))


def revoke(worker, slot_epoch):
    return worker.operate("RevokeDevice", control.RevokeDeviceRequest(epoch=EPOCH, slot_epoch=slot_epoch))


def report_of(worker):
    """Return what an engine measures that was just started."""
    request = control.DetermineNumAvailableBlocksRequest(epoch=EPOCH)
    return worker.operate("DetermineNumAvailableBlocks", request, timeout_s=180)


def agree(worker):
    """Allocate all that is measured."""
    request = control.InitializeCacheRequest(epoch=EPOCH, num_gpu_blocks=report_of(worker).num_gpu_blocks)
    assert worker.operate("InitializeCache", request).state == READY


def test_a_model_goes_to_standby_and_comes_back_and_the_device_changes_hands(pair, device):
    """One test, as each step begins where the last one ended: an engine's start takes seconds."""
    a, b = pair
    assert [worker.status().state for worker in pair] == [STANDBY, STANDBY]
    assert read_usage(device).books.rows == {}, "nobody was granted anything"
    _, words = refusal(a, "WakeUp", control.WakeUpRequest(epoch=EPOCH))
    assert "needs a grant" in words
    assert a.running_engines() == []

    grant(a, 1, instance=a.status().instance, budget_bytes=0, reserved_bytes=int(TOTAL * 0.9) - BUDGET)
    assert wake(a).state == control.WORKER_STATE_STARTING
    agree(a)
    report = a.report()
    assert (report.device, report.limited_by) == ("gpu-0", "device memory budget 128.0 MiB")
    expected = a.greedy(PROMPT, 8)
    assert a.greedy(PROMPT, 8) == expected, "by its prefix"
    assert refusal(b, "WakeUp", control.WakeUpRequest(epoch=EPOCH))[1].startswith("WakeUp needs a grant")

    stream = a.stream(PROMPT, temperature=0, max_tokens=LONG_LEN - 64, ignore_eos=True)
    next(iter(stream))
    status = sleep(a, 3, mode=control.DRAIN_MODE_ABORT)
    assert [message.finish_reason for message in stream][-1] == ABORTED
    assert (status.state, status.residual_bytes, status.grant.slot_epoch) == (STANDBY, 0, 1)
    assert (a.running_engines(), read_usage(device).books.rows) == ([], {})

    wake(a)
    agree(a)
    assert a.greedy(PROMPT, 8) == expected
    assert sleep(a, 1).state == ASLEEP
    revoke(a, 2)
    (asleep,) = a.running_engines()

    grant(b, 3)
    wake(b)
    agree(b)
    assert b.greedy(PROMPT, 8) == expected
    assert refusal(a, "WakeUp", control.WakeUpRequest(epoch=EPOCH))[1].startswith("WakeUp needs a grant")
    assert len(read_usage(device).books.rows) == 2

    os.kill(asleep, signal.SIGKILL)
    status = a.until(lambda status: status.state == STANDBY)
    assert (status.engine_failures, status.HasField("grant")) == (1, False)
    assert (a.running_engines(), len(read_usage(device).books.rows)) == ([], 1)
    assert b.greedy(PROMPT, 8) == expected
    usage = read_usage(device)
    assert (usage.marks.most_awake, usage.violations, usage.marks.over_budget_bytes) == (1, (), 0)
    assert usage.marks.highest_bytes <= BUDGET + 16 * MIB, "one that is awake, and a sleeper's context"


def test_a_front_that_was_killed_comes_again_without_its_grant(start_on, tmp_path):
    device = tmp_path / "gpu-0"
    offer_device(device, TOTAL)
    before = start_on(tmp_path, "--device-grants")
    instance = before.status().instance
    grant(before, 1, instance=instance)
    wake(before)
    assert report_of(before).num_gpu_blocks
    assert len(read_usage(device).books.rows) == 1
    (engine,) = before.running_engines()
    ended = os.pidfd_open(engine)
    before.process.kill()
    assert select.select([ended], [], [], 60)[0], "an engine does not outlive its front"
    os.close(ended)
    assert read_usage(device).books.rows == {}
    again = start_on(tmp_path, "--device-grants")
    status = again.status()
    assert (status.state, status.HasField("grant"), again.running_engines()) == (STANDBY, False, [])
    assert status.instance != instance
    request = control.GrantDeviceRequest(epoch=EPOCH, slot="pool-0", slot_epoch=1, instance=instance)
    assert "it restarted" in refusal(again, "GrantDevice", request)[1]


def test_the_ranks_of_one_pod_end_with_their_engine_and_come_again(start_on, tmp_path):
    devices = [tmp_path / name for name in ("gpu-0", "gpu-1")]
    for device in devices:
        offer_device(device, TOTAL)
    worker = start_on(tmp_path, "--tensor-parallel-size", "2")
    agree(worker)
    expected = worker.greedy(PROMPT, 8)
    assert [len(read_usage(device).books.rows) for device in devices] == [1, 1]
    status = sleep(worker, 3)
    assert (status.state, status.residual_bytes, worker.running_engines()) == (STANDBY, 0, [])
    assert [read_usage(device).books.rows for device in devices] == [{}, {}]
    wake(worker)
    agree(worker)
    assert worker.greedy(PROMPT, 8) == expected
