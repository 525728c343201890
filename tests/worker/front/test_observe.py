"""Metrics, the HTTP side door and the log."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dormouse_worker.common.ipc import StepOutputs, StoreCounts
from dormouse_worker.front.api.http import TIMEOUT_S, Answer, HttpDoor
from dormouse_worker.front.telemetry.logs import KeyValueFormatter


async def samples(house):
    """Return every sample by name and labels without the model's name."""
    status, text = await house.http("/metrics")
    assert status == 200
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name", "") == "tiny" or family.name.startswith("dormouse_process_")
            found[sample.name, *sorted(labels.items())] = sample.value
    return found


async def test_a_request_shows_in_every_metric_that_speaks_of_it(house):
    await house.collect("hello", max_tokens=3)
    found = await samples(house)
    assert found["vllm:prompt_tokens_total",] == 5
    assert found["vllm:generation_tokens_total",] == 3
    assert found["vllm:request_success_total", ("finished_reason", "length")] == 1
    assert found["vllm:time_to_first_token_seconds_count",] == 1
    assert found["vllm:inter_token_latency_seconds_count",] == 2
    assert found["vllm:e2e_request_latency_seconds_count",] == 1
    assert found["vllm:request_queue_time_seconds_sum",] == 0.25
    assert found["vllm:request_prefill_time_seconds_sum",] == 0.5
    assert found["vllm:request_decode_time_seconds_count",] == 1


async def test_what_the_steps_counted_adds_up(house):
    counted = {"prefix_queries": 10, "prefix_hits": 4, "preemptions": 1, "not_finite": 3}
    counted |= {"mm_cache_queries": 3, "mm_cache_hits": 2}
    for _ in range(2):
        house.engine.say(StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0, **counted))
    house.engine.say(StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0, prefix_queries=5))
    await house.collect("hello", max_tokens=3)
    found = await samples(house)
    assert found["vllm:prefix_cache_queries_total",] == 25
    assert found["vllm:prefix_cache_hits_total",] == 8
    assert (found["vllm:mm_cache_queries_total",], found["vllm:mm_cache_hits_total",]) == (6, 4)
    assert found["vllm:num_preemptions_total",] == 2
    assert found["dormouse_requests_not_finite_total",] == 6


async def test_what_became_of_stored_blocks_adds_up_by_reason(house):
    counts = StoreCounts(
        found=4,
        handed_over=5,
        hits=3,
        read_bytes=30,
        writes=2,
        written_bytes=20,
        misses={"damaged": 1},
        stored_bytes=70,
    )
    for _ in range(2):
        house.engine.say(StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0, kv_store=counts))
    await house.collect("hello", max_tokens=3)
    found = await samples(house)
    assert found["dormouse_kv_store_found_total",] == 8
    assert found["dormouse_kv_store_handed_over_total",] == 10
    assert found["dormouse_kv_store_hits_total",] == 6
    assert found["dormouse_kv_store_read_bytes_total",] == 60
    assert found["dormouse_kv_store_writes_total",] == 4
    assert found["dormouse_kv_store_written_bytes_total",] == 40
    assert found["dormouse_kv_store_misses_total", ("reason", "damaged")] == 2
    assert found["dormouse_kv_store_bytes",] == 70


async def test_every_metric_that_has_no_further_labels_is_there_from_the_start(house):
    found = await samples(house)
    for name in ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens"):
        assert found[f"vllm:{name}_total",] == 0


async def test_load_and_cache_are_shown_as_the_engine_tells_them(house):
    house.engine.is_paused = True
    call = house.generate([1], max_tokens=9)
    await house.engine.until_received(lambda m: getattr(m, "request_id", None) == "1")
    house.engine.step()
    await call.read()
    found = await samples(house)
    assert (found["vllm:num_requests_running",], found["vllm:kv_cache_usage_perc",]) == (1, 0.01)
    assert found["dormouse_kv_blocks", ("rank", "0")] == 100
    labels = {"block_size": "4", "gpu_memory_utilization": "0.5", "num_cpu_blocks": "0", "num_gpu_blocks": "40"}
    assert found["vllm:cache_config_info", *sorted(labels.items())] == 1
    assert found["dormouse_kv_blocks_allocated",] == 40
    call.cancel()


async def test_it_is_shown_for_how_long_the_engine_has_been_silent(house):
    link = house.front.worker.link
    link._last_message_s -= 30
    assert (await samples(house))["dormouse_engine_silence_seconds",] >= 30
    await link.stop()
    assert (await samples(house))["dormouse_engine_silence_seconds",] == 0


async def test_sleep_and_wake_are_measured(house):
    await house.operate("Sleep", level=2)
    found = await samples(house)
    assert found["vllm:engine_sleep_state", ("sleep_state", "discard_all")] == 1
    assert found["vllm:engine_sleep_state", ("sleep_state", "awake")] == 0
    assert found["dormouse_gpu_residual_bytes",] == 7
    assert found["dormouse_sleep_seconds_sum",] == 0.5
    await house.operate("WakeUp")
    found = await samples(house)
    assert found["vllm:engine_sleep_state", ("sleep_state", "awake")] == 1
    assert found["dormouse_wake_seconds_sum", ("phase", "total")] == 1.5
    assert found["dormouse_wake_seconds_count", ("phase", "total")] == 1


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/nothing", "GET", 404), ("/metrics", "POST", 405), ("/metrics?x=1", "HEAD", 200)]
)
async def test_other_paths_and_methods_are_refused(house, path, method, status):
    assert (await house.http(path, method))[0] == status


async def test_a_client_that_says_nothing_delays_nobody(house):
    _, silent = await asyncio.open_connection("127.0.0.1", house.ports.http)
    async with asyncio.timeout(TIMEOUT_S / 2):
        assert (await house.http("/healthz"))[0] == 200
    silent.close()
    await silent.wait_closed()


async def test_a_head_without_end_is_refused():
    door = HttpDoor({"/": lambda: Answer(200, b"ok")})
    port = await door.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x" * 9000)
    assert b"400" in await reader.readline()
    writer.close()
    await door.stop()


def record(message, exc_info=None, **fields):
    made = logging.LogRecord("worker", logging.INFO, __file__, 1, message, (), exc_info)
    made.fields = fields
    return made


def test_a_line_of_the_log_is_one_line_of_keys_and_values():
    line = KeyValueFormatter().format(record("request ended", tokens=3, reason="it's\nover"))
    assert 'event="request ended" tokens=3 reason="it\'s\\nover"' in line
    assert "\n" not in line
    assert line.startswith("time=")


def test_a_traceback_stays_in_the_line():
    try:
        int("gone wrong")
    except ValueError:
        line = KeyValueFormatter().format(record("unexpected", sys.exc_info()))
    assert "gone wrong" in line
    assert "\n" not in line
