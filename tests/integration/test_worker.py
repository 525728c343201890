"""The worker as the operator and a client see it: front and engine processes with the real small model."""

from __future__ import annotations

import gzip
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import load_file, save_file

from dormouse_api.names import Role
from dormouse_api.testing_tickets import STRANGE_SEED, proof
from dormouse_api.v1 import worker_control_pb2 as control
from tools import reference

PROMPTS = [[5, 80, 300, 7], [17] * 40, [900, 901, 902], list(range(300, 520)), [4000, 77], [33], [60, 61] * 30, [1234]]
SERVING, NOT_SERVING = 1, 2


@pytest.fixture(scope="module")
def expected(tiny_model):
    """What transformers says to each prompt."""
    return [reference.greedy_tokens(tiny_model, prompt, 32) for prompt in PROMPTS]


def test_greedy_tokens_equal_transformers_alone_and_together(worker, expected):
    assert [worker.greedy(prompt, 32) for prompt in PROMPTS] == expected
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda prompt: worker.greedy(prompt, 32), PROMPTS)) == expected


def test_a_sampled_text_does_not_depend_on_who_else_is_in_the_batch(worker):
    def sampled():
        return [t for m in worker.stream([5, 80, 300], temperature=1.0, seed=11, max_tokens=40) for t in m.token_ids]

    alone = sampled()
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(worker.greedy, prompt, 40) for prompt in PROMPTS[:5]]
        crowded = sampled()
        assert all(other.result() for other in others)
    assert crowded == alone


def test_the_report_adds_up_and_the_allocation_is_what_was_asked_for(worker):
    report = worker.report()
    used = report.weights_bytes + report.peak_activation_bytes + report.non_torch_bytes
    assert report.total_bytes == 2 << 30
    assert report.kv_cache_bytes == pytest.approx(report.total_bytes * report.gpu_memory_utilization - used, abs=1)
    assert report.num_gpu_blocks == report.kv_cache_bytes // report.block_bytes
    assert report.block_bytes == 3 * 2 * 4 * 32 * 4 * 16  # layers × k and v × kv heads × head size × float32 × tokens
    assert worker.status().num_gpu_blocks == min(report.num_gpu_blocks, 2048)


def test_more_blocks_than_reported_are_refused_with_both_numbers(worker):
    asked = worker.report().num_gpu_blocks + 1
    with pytest.raises(grpc.RpcError) as caught:
        worker.operate("InitializeCache", control.InitializeCacheRequest(epoch=1, num_gpu_blocks=asked))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(asked) in caught.value.details()
    assert str(asked - 1) in caught.value.details()


def test_a_client_can_not_command_on_either_port(worker):
    for channel in (worker.channel, worker.control_channel):
        stub = type(worker.control)(channel)
        for metadata in ((), proof(Role.OPERATOR, seed=STRANGE_SEED), proof(Role.GATEWAY)):
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetStatus(control.GetStatusRequest(), timeout=90, metadata=metadata)
            assert caught.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


def test_a_cancelled_stream_frees_its_blocks(worker):
    stream = worker.stream([9, 9, 9], temperature=0, max_tokens=400, ignore_eos=True)
    next(iter(stream))
    stream.cancel()
    worker.greedy([1, 2, 3], 1)  # a later request comes round only after the abort was handled
    usage = next(line for line in worker.page().splitlines() if line.startswith("vllm:kv_cache_usage_perc{"))
    assert float(usage.rsplit(" ", 1)[1]) == 0.0


def test_a_profile_of_real_steps_is_written_where_the_flag_says_and_the_worker_is_healthy(
    start_worker, tiny_model, tmp_path
):
    profiled = start_worker(tiny_model, "--profiler-dir", str(tmp_path))
    profiled.start()
    with pytest.raises(grpc.RpcError) as caught:
        profiled.operate("StartProfile", control.StartProfileRequest(epoch=1, directory="/"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    profiled.operate("StartProfile", control.StartProfileRequest(epoch=1, directory="night"))
    profiled.greedy([5, 80, 300], 3)
    profiled.operate("CheckHealth", control.CheckHealthRequest())
    trace = Path(profiled.operate("StopProfile", control.StopProfileRequest(epoch=1)).path)
    assert trace.parent == tmp_path.resolve() / "night"
    operations = gzip.decompress(trace.read_bytes())
    assert b"dormouse::forward" in operations or b"aten::mm" in operations  # with our kernels, or without


def test_an_older_epoch_changes_nothing(start_worker, tiny_model):
    fenced = start_worker(tiny_model)
    report = fenced.report()
    fenced.operate("DetermineNumAvailableBlocks", control.DetermineNumAvailableBlocksRequest(epoch=7))
    with pytest.raises(grpc.RpcError) as caught:
        fenced.operate("InitializeCache", control.InitializeCacheRequest(epoch=6, num_gpu_blocks=report.num_gpu_blocks))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "6" in caught.value.details()
    assert "7" in caught.value.details()
    assert fenced.status().state == control.WORKER_STATE_PROFILED
    with pytest.raises(grpc.RpcError) as unserved:
        fenced.greedy([1], 1)
    assert unserved.value.code() is grpc.StatusCode.UNAVAILABLE, "nobody serves before the agreement"


def test_sleep_gives_the_memory_back_and_the_woken_worker_says_the_same(worker, expected):
    asleep = worker.operate("Sleep", control.SleepRequest(epoch=1, level=2))
    assert (asleep.state, asleep.sleep_level, asleep.num_gpu_blocks) == (control.WORKER_STATE_ASLEEP, 2, 0)
    assert asleep.freed_bytes > worker.report().weights_bytes
    assert worker.health("dormouse.v1.Inference") == NOT_SERVING
    with pytest.raises(grpc.RpcError) as caught:
        worker.greedy([1], 1)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    again = worker.operate("Sleep", control.SleepRequest(epoch=1, level=2))
    assert again.state == control.WORKER_STATE_ASLEEP
    awake = worker.operate("WakeUp", control.WakeUpRequest(epoch=1))
    assert awake.state == control.WORKER_STATE_READY
    assert awake.num_gpu_blocks == min(worker.report().num_gpu_blocks, 2048)
    assert worker.greedy(PROMPTS[0], 32) == expected[0]
    assert worker.health("dormouse.v1.Inference") == SERVING


def test_level_1_on_one_memory_gives_the_cache_back_and_keeps_the_weights(worker, expected):
    asleep = worker.operate("Sleep", control.SleepRequest(epoch=1, level=1))
    assert (asleep.state, asleep.sleep_level, asleep.host_copy_bytes) == (control.WORKER_STATE_ASLEEP, 1, 0)
    assert asleep.residual_bytes > asleep.report.weights_bytes
    awake = worker.operate("WakeUp", control.WakeUpRequest(epoch=1))
    assert awake.state == control.WORKER_STATE_READY
    assert worker.greedy(PROMPTS[0], 32) == expected[0]


def test_a_terminated_worker_finishes_what_it_began(start_worker, tiny_model):
    worker = start_worker(tiny_model)
    worker.start()
    stream = worker.stream([5, 80, 300, 7], temperature=0, max_tokens=120, ignore_eos=True)
    first = next(iter(stream))
    worker.process.send_signal(signal.SIGTERM)
    tokens = [*first.token_ids, *(t for m in stream for t in m.token_ids)]
    assert len(tokens) == 120
    assert worker.process.wait(timeout=90) == 0


def test_weights_that_changed_during_the_sleep_are_noticed_before_a_user_sees_a_token(
    start_worker, tiny_model, tmp_path
):
    copy = shutil.copytree(tiny_model, tmp_path / "model")
    worker = start_worker(copy)
    worker.start()
    worker.operate("Sleep", control.SleepRequest(epoch=1, level=2))
    weights = load_file(copy / "model.safetensors")
    name = next(n for n in weights if n.endswith("down_proj.weight"))
    weights[name] = torch.randn_like(weights[name])
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(grpc.RpcError) as refused:
        worker.operate("WakeUp", control.WakeUpRequest(epoch=1))
    assert name in refused.value.details()
    assert worker.status().state == control.WORKER_STATE_ASLEEP, "nothing is lost: the right files wake it"
    with pytest.raises(grpc.RpcError) as caught:
        worker.greedy([1], 1)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_neither_the_front_nor_an_engine_of_our_kernels_alone_imports_torch(worker):
    proc = Path("/proc", str(worker.process.pid))
    engine = (proc / "task" / proc.name / "children").read_text().split()[0]
    assert "libtorch" not in (proc / "maps").read_text()
    assert "libtorch" not in Path("/proc", engine, "maps").read_text()
