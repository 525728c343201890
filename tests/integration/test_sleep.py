"""Sleep and wake of a real worker on the fake device: levels, parts, two phases, and who may call when."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.conftest import EPOCH
from tests.integration.frail_worker import DEVICE_BYTES, NEIGHBOUR

ASLEEP, READY, DRAINING = control.WORKER_STATE_ASLEEP, control.WORKER_STATE_READY, control.WORKER_STATE_DRAINING
Code = grpc.StatusCode
SERVING, NOT_SERVING = 1, 2
FRAIL = ("--worker-cls", "tests.integration.frail_worker.FrailWorker")
FLAGS = ("--max-model-len", "64", "--max-num-batched-tokens", "32", "--block-size", "8", "--keep-prefix-cache", *FRAIL)
PROMPT = list(range(10, 43))  # four blocks and a token
NUM_CALLERS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def started(start_worker, model):
    worker = start_worker(model, *FLAGS)
    worker.start()
    return worker


@pytest.fixture
def sleeper(started):
    """The module's worker, awake before and after each test, with nothing in its prefix cache."""
    started.operate("ResetPrefixCache", control.ResetPrefixCacheRequest(epoch=EPOCH))
    yield started
    assert wake(started).state == READY


def sleep(worker, level=1, *tags, **fields):
    return worker.operate("Sleep", control.SleepRequest(epoch=EPOCH, level=level, tags=tags, **fields))


def wake(worker, *tags):
    return worker.operate("WakeUp", control.WakeUpRequest(epoch=EPOCH, tags=tags))


def refusal(worker, method, request):
    """Return the code and the words with which a command is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        worker.operate(method, request)
    return caught.value.code(), caught.value.details()


def generate(worker, **sampling):
    """Return the tokens and how many of the prompt came from the cache."""
    messages = list(worker.stream(PROMPT, temperature=0, max_tokens=6, ignore_eos=True, **sampling))
    return [t for m in messages for t in m.token_ids], messages[-1].usage.cached_tokens


def answer(worker, num_tokens=20):
    """Return the reasons with which one request's messages say that it ends, or the status that it got instead."""
    try:
        messages = list(worker.stream(PROMPT, temperature=0, max_tokens=num_tokens, ignore_eos=True))
    except grpc.RpcError as error:
        return error.code()
    assert messages[-1].finish_reason, "the last message says why it is the last"
    return [m.finish_reason for m in messages if m.finish_reason]


@pytest.mark.parametrize("level", [1, 2])
def test_what_sleeps_is_given_back_and_the_woken_worker_says_the_same(sleeper, level):
    tokens, _ = generate(sleeper)
    asleep = sleep(sleeper, level)
    assert (asleep.state, asleep.sleep_level, asleep.num_gpu_blocks) == (ASLEEP, level, 0)
    assert list(asleep.sleeping_tags) == ["weights", "kv_cache"]
    assert asleep.residual_bytes == 0
    assert asleep.freed_bytes >= asleep.report.weights_bytes
    assert (asleep.host_copy_bytes > asleep.report.weights_bytes) == (level == 1)
    assert set(asleep.last_sleep_phases) == {"save", "drop"}
    assert sleeper.health("dormouse.v1.Inference") == NOT_SERVING
    assert answer(sleeper) is Code.UNAVAILABLE
    awake = wake(sleeper)
    assert (awake.state, awake.sleep_level, list(awake.sleeping_tags)) == (READY, 0, [])
    assert awake.num_gpu_blocks == min(awake.report.num_gpu_blocks, 2048)
    assert set(awake.last_wake_phases) == {"reserve", "weights", "kv_cache", "verify"}
    assert generate(sleeper)[0] == tokens
    assert sleeper.health("dormouse.v1.Inference") == SERVING


def test_known_prefixes_survive_level_1_and_not_level_2(sleeper):
    tokens, cold = generate(sleeper)
    kept_bytes = sleep(sleeper, 1).host_copy_bytes - sleeper.status().report.weights_bytes
    assert kept_bytes > 0
    wake(sleeper)
    assert (cold, generate(sleeper)) == (0, (tokens, 32))
    sleep(sleeper, 2)
    wake(sleeper)
    assert generate(sleeper) == (tokens, 0)


def test_parts_sleep_and_wake_by_their_names_and_nobody_is_served_before_the_last(sleeper):
    tokens, _ = generate(sleeper)
    part = sleep(sleeper, 1, "kv_cache")
    assert (part.state, list(part.sleeping_tags)) == (ASLEEP, ["kv_cache"])
    assert list(wake(sleeper, "weights").sleeping_tags) == ["kv_cache"], "what is awake needs no waking"
    assert list(sleep(sleeper, 1, "weights").sleeping_tags) == ["weights", "kv_cache"]
    woken = wake(sleeper, "weights")
    assert (woken.state, list(woken.sleeping_tags), woken.num_gpu_blocks) == (ASLEEP, ["kv_cache"], 0)
    assert answer(sleeper) is Code.UNAVAILABLE
    assert wake(sleeper, "kv_cache").state == READY
    assert generate(sleeper)[0] == tokens


def test_two_phases_carry_the_request_counter_and_let_nobody_in_between(sleeper):
    counter = sleeper.status().request_counter
    generate(sleeper)
    late = control.PrepareSleepRequest(epoch=EPOCH, level=1, request_counter=counter)
    code, words = refusal(sleeper, "PrepareSleep", late)
    assert (code, f"request_counter is {counter}" in words) == (Code.FAILED_PRECONDITION, True)
    now = control.PrepareSleepRequest(epoch=EPOCH, level=1, request_counter=counter + 1)
    assert sleeper.operate("PrepareSleep", now).request_counter == counter + 1
    assert sleeper.status().state == DRAINING
    assert answer(sleeper) is Code.UNAVAILABLE
    assert sleep(sleeper).request_counter == counter + 1
    prepared = sleeper.operate("PrepareWakeUp", control.PrepareWakeUpRequest(epoch=EPOCH))
    assert (prepared.missing_bytes, sleeper.status().state) == (0, ASLEEP)
    assert wake(sleeper).state == READY


def test_a_wake_is_refused_while_a_neighbour_holds_the_memory_and_succeeds_later(sleeper, model):
    tokens, _ = generate(sleeper)
    sleep(sleeper)
    held = model / NEIGHBOUR
    held.write_text(str(DEVICE_BYTES))
    try:
        prepared = sleeper.operate("PrepareWakeUp", control.PrepareWakeUpRequest(epoch=EPOCH))
        assert prepared.missing_bytes > sleeper.status().report.weights_bytes
        code, words = refusal(sleeper, "WakeUp", control.WakeUpRequest(epoch=EPOCH))
        assert (code, str(prepared.missing_bytes) in words) == (Code.RESOURCE_EXHAUSTED, True)
        assert sleeper.status().state == ASLEEP
    finally:
        held.unlink()
    assert wake(sleeper).state == READY
    assert generate(sleeper)[0] == tokens


def test_to_sleep_twice_and_to_wake_twice_changes_nothing(sleeper):
    first, second = (sleep(sleeper) for _ in range(2))
    assert (second.state, second.last_sleep_seconds) == (ASLEEP, first.last_sleep_seconds)
    assert sleep(sleeper, 2).sleep_level == 2
    assert sleep(sleeper, 1).sleep_level == 2, "a lesser sleep does not wake"
    first, second = (wake(sleeper) for _ in range(2))
    assert (second.state, second.last_wake_seconds) == (READY, first.last_wake_seconds)


@pytest.mark.parametrize("method", ["PrepareSleep", "Sleep", "PrepareWakeUp", "WakeUp"])
def test_a_stale_epoch_and_unknown_names_are_refused_and_change_nothing(sleeper, method):
    message = getattr(control, f"{method}Request")
    level = {"level": 1} if method.endswith("Sleep") else {}
    code, words = refusal(sleeper, method, message(epoch=EPOCH - 1, **level))
    assert (code, f"epoch is {EPOCH - 1}" in words) == (Code.FAILED_PRECONDITION, True)
    code, words = refusal(sleeper, method, message(epoch=EPOCH, tags=["weights", "cuda_graphs"], **level))
    assert (code, "cuda_graphs" in words, "kv_cache" in words) == (Code.INVALID_ARGUMENT, True, True)
    if level:
        code, words = refusal(sleeper, method, message(epoch=EPOCH, level=4))
        assert (code, "level is 4" in words) == (Code.INVALID_ARGUMENT, True)
    assert sleeper.status().state == READY
    assert generate(sleeper)


@pytest.mark.parametrize("mode", [control.DRAIN_MODE_DRAIN, control.DRAIN_MODE_ABORT])
def test_of_requests_that_run_or_arrive_in_the_instant_of_a_sleep_none_is_lost_and_none_ends_twice(sleeper, mode):
    ends = {pb.FINISH_REASON_LENGTH}
    if mode == control.DRAIN_MODE_ABORT:
        ends.add(pb.FINISH_REASON_ABORT)
    with ThreadPoolExecutor(NUM_CALLERS) as pool:
        for _ in range(8):
            check_a_sleep_in_a_crowd(sleeper, pool, mode, ends)


def check_a_sleep_in_a_crowd(worker, pool, mode, ends):
    """Sleep while one request runs and others arrive; count what became of each."""
    accepted = worker.status().request_counter
    running = worker.stream(PROMPT, temperature=0, max_tokens=30, ignore_eos=True)
    reasons = [next(iter(running)).finish_reason]
    together = threading.Barrier(NUM_CALLERS + 1)

    def call():
        together.wait()
        return answer(worker)

    calls = [pool.submit(call) for _ in range(NUM_CALLERS)]
    together.wait()
    asleep = sleep(worker, mode=mode)
    reasons += [m.finish_reason for m in running]
    answers = [[reason for reason in reasons if reason], *(call.result() for call in calls)]
    finished = [reasons for reasons in answers if isinstance(reasons, list)]
    assert all(len(reasons) == 1 and set(reasons) <= ends for reasons in finished), answers
    assert {status for status in answers if not isinstance(status, list)} <= {Code.UNAVAILABLE}
    assert asleep.request_counter - accepted == len(finished), answers
    assert wake(worker).state == READY


def test_metrics_tell_the_state_the_residue_and_the_phases(sleeper):
    def read():
        found = re.findall(
            r'^(\S+?)\{model_name="tiny"(?:,[a-z_]+="([a-z_]+)")?\} (\S+)$', sleeper.page(), re.MULTILINE
        )
        return {(name, label): float(value) for name, label, value in found}

    before = read()
    assert before["vllm:engine_sleep_state", "awake"] == 1
    asleep = sleep(sleeper)
    during = read()
    assert during["vllm:engine_sleep_state", "weights_offloaded"] == 1
    assert during["dormouse_gpu_residual_bytes", ""] == asleep.residual_bytes
    assert during["dormouse_host_copy_bytes", ""] == asleep.host_copy_bytes > 0
    wake(sleeper)
    woken = read()
    for phase in ("total", "reserve", "weights", "kv_cache", "verify"):
        count = "dormouse_wake_seconds_count", phase
        assert woken[count] - before.get(count, 0) == 1, phase
    assert woken["dormouse_sleep_seconds_count", ""] - before["dormouse_sleep_seconds_count", ""] == 1
