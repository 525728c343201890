"""Load, measure, agree, allocate: our controller over vLLM's core; and what that core is never asked for."""

from __future__ import annotations

import pytest

from dormouse_worker.common.commands import (
    AddLora,
    CheckHealth,
    InitializeCache,
    ListLoras,
    ResetPrefixCache,
    SaveShardedState,
    Shutdown,
    Sleep,
    StartProfile,
    StopProfile,
)
from dormouse_worker.common.ipc import CommandRequest, CommandResult, State
from dormouse_worker.engine.testing import make_add
from dormouse_worker.foreign.vllm.testing import BLOCK_BYTES, BLOCK_TOKENS, MAX_MODEL_LEN
from tests.worker.foreign.vllm.conftest import MEMORY_BYTES, Desk


def test_it_reports_what_fits_beside_the_model_in_vllms_blocks():
    desk = Desk()
    desk.controller.start()
    report = desk.status.report
    left_bytes = MEMORY_BYTES // 2 - 4000 - 1000 - 2000
    assert (desk.status.state, report.kv_cache_bytes) == (State.PROFILED, left_bytes)
    assert (report.block_bytes, report.block_size) == (BLOCK_BYTES, BLOCK_TOKENS)
    assert (report.num_gpu_blocks, report.num_cpu_blocks) == (left_bytes // BLOCK_BYTES, 0)
    assert (report.max_model_len, desk.status.model.compute_path) == (MAX_MODEL_LEN, "vllm stand-in")


def test_the_agreed_number_of_blocks_is_vllms(desk):
    assert (desk.core.num_blocks, desk.status.state, desk.status.num_gpu_blocks) == (40, State.READY, 40)
    assert desk.run(InitializeCache(40)).error_reason == ""
    assert desk.core.num_loads == 1
    assert desk.run(InitializeCache(30)).error_reason == ""
    assert (desk.core.num_blocks, desk.core.num_loads) == (30, 2)


def test_one_block_more_than_the_longest_request_takes_is_needed(desk):
    """VLLM keeps one for itself: with so many, the longest request would wait for ever."""
    least = MAX_MODEL_LEN // BLOCK_TOKENS + 1
    refusal = desk.run(InitializeCache(least - 1))
    assert refusal.error_reason == "InvalidArgument"
    assert f"needs {least} of {BLOCK_TOKENS} tokens" in refusal.error_message
    assert desk.status.state is State.PROFILED
    assert desk.run(InitializeCache(least)).error_reason == ""


def test_a_core_that_lies_about_its_blocks_serves_nobody():
    desk = Desk()
    desk.core.hidden_blocks = 3
    desk.controller.start()
    assert desk.run(InitializeCache(40)).error_message == "40 blocks are agreed, and vLLM says that it has 37"
    assert (desk.status.state, desk.status.failure_reason) == (State.FAILED, "Damaged")


@pytest.mark.parametrize(
    ("total_bytes", "reason"), [(1 << 13, "InsufficientMemory"), (1 << 16, "MaxModelLenTooLarge")], ids=str
)
def test_what_does_not_fit_is_told_with_what_to_change(total_bytes, reason):
    desk = Desk(total_bytes)
    desk.controller.start()
    assert (desk.status.state, desk.status.failure_reason) == (State.FAILED, reason)
    assert "raise the memory limit" in desk.status.failure_message


def test_settings_that_vllm_is_not_given_are_told_before_it_is_imported():
    desk = Desk(enable_lora=True)
    desk.controller.start()
    assert desk.core.num_loads == 0
    assert (desk.status.failure_reason, desk.status.failure_message) == (
        "InvalidSettings",
        "enable_lora is True; with runtime 'vllm' allowed is False",
    )


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (Sleep(1), "3 ends the engine process"),
        (SaveShardedState("/out"), "runtime vllm does not do that"),
        (StartProfile("/traces"), "runtime vllm does not do that"),
        (StopProfile(), "runtime vllm takes none"),
    ],
    ids=lambda value: getattr(value, "method", ""),
)
def test_what_it_does_not_do_is_refused_and_changes_nothing(desk, command, word):
    assert word in desk.run(command).error_message
    assert desk.status.state is State.READY


def test_it_has_no_adapters_and_takes_none(desk):
    desk.run(CheckHealth())
    desk.controller.handle(CommandRequest(2, AddLora("/adapters/sql")))
    desk.controller.step()
    result = [message for message in desk.sent if isinstance(message, CommandResult)][-1]
    assert (result.command_id, "runtime vllm does not do that" in result.error_message) == (2, True)
    assert desk.run(ListLoras()).value == '{"loaded":[],"lost":{}}'


def test_health_is_that_of_its_core(desk):
    assert desk.run(CheckHealth()).error_reason == ""
    desk.core.broken = RuntimeError("no memory")
    assert "no memory" in desk.run(CheckHealth()).error_message


def test_prefixes_are_forgotten_when_that_is_asked(desk):
    prompt = list(range(64)) * 2

    def cached():
        desk.controller.handle(make_add("a", prompt, max_tokens=1))
        (step,) = desk.steps()
        return step.outputs[0].cached_tokens, step.prefix_queries, step.prefix_hits

    assert [cached(), cached()] == [(0, 128, 0), (96, 128, 96)]
    desk.run(ResetPrefixCache())
    assert cached()[0] == 0


def test_shutdown_frees_everything(desk):
    desk.run(Shutdown())
    assert desk.core.num_blocks == 0
    assert desk.controller.is_shut_down
