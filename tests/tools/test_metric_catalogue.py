"""Every metric is named by the rules, described in docs/reference/metrics.md, and has labels of few values only."""

from __future__ import annotations

import re

import pytest

from tools.metric_catalogue import LABELS, PAGE, catalogue, page

METRICS = catalogue()
NAMES = [f"{one.part} {one.name}" for one in METRICS]
# What docs and autoscalers build on: design §3.3, with the names' endings left out.
PROMISED = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_success",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:mm_cache_queries",
    "vllm:mm_cache_hits",
    "vllm:cache_config_info",
    "vllm:engine_sleep_state",
    "dormouse_actuation_seconds",
    "dormouse_sleep_seconds",
    "dormouse_wake_seconds",
    "dormouse_held_requests",
    "dormouse_hold_seconds",
    "dormouse_rejected",
    "dormouse_migrated",
    "dormouse_kv_blocks",
    "dormouse_kv_blocks_agreed",
    "dormouse_gpu_residual_bytes",
    "dormouse_reconcile_seconds",
    "dormouse_replicas",
}


def test_the_page_is_what_the_programs_publish():
    assert PAGE.read_text("utf-8") == page(METRICS), "run: python -m tools.metric_catalogue"


def test_every_promised_metric_is_there():
    assert PROMISED - {one.name for one in METRICS} == set()


@pytest.mark.parametrize("one", METRICS, ids=NAMES)
def test_a_metric_is_named_by_the_rules_and_says_what_it_is(one):
    assert re.fullmatch(r"(dormouse_|vllm:)[a-z0-9_]+", one.name)
    assert one.unit, "tools/metric_catalogue.py must name its unit"
    assert not re.search(r"_(ms|us|ns|milliseconds|minutes|hours|kb|mb|kib|mib|gib|percent)$", one.name), "no base unit"
    assert one.kind in {"counter", "gauge", "histogram"}
    assert not one.name.endswith(("_total", "_count", "_sum", "_bucket")), "the ending says another kind"
    assert one.kind != "histogram" or one.name.endswith("_seconds")
    assert len(one.help) > 10
    assert "|" not in one.help
    assert "\n" not in one.help


@pytest.mark.parametrize("one", METRICS, ids=NAMES)
def test_a_metric_has_only_labels_whose_values_are_known_to_be_few(one):
    assert set(one.labels) - LABELS.keys() == set()
    assert len(one.labels) <= 5


def test_no_label_is_explained_that_nobody_uses():
    assert LABELS.keys() == {label for one in METRICS for label in one.labels}
