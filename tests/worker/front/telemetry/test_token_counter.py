"""What is counted with every token, as a scrape sees it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from dormouse_worker.front.telemetry.token_counter import TokenTally

BUCKETS_S = (0.01, 0.5, 2.0)
TIMES_S = (0.001, 0.01, 0.25, 0.5, 1.0, 7.0)


def lines(registry, name):
    """Return the samples of a metric, but when it was made."""
    text = generate_latest(registry).decode().splitlines()
    return sorted(line for line in text if line.startswith(name) and "_created" not in line)


def test_the_histogram_reads_as_the_client_librarys_own():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = TokenTally("tiny", BUCKETS_S)
    ours.register(tally)
    name = "vllm:inter_token_latency_seconds"
    own = Histogram(name, "Time between tokens.", ("model_name",), registry=theirs, buckets=BUCKETS_S).labels("tiny")
    assert lines(ours, name) == lines(theirs, name), "also before the first token"
    for time_s in TIMES_S:
        tally.add(1, time_s)
        own.observe(time_s)
    assert lines(ours, name) == lines(theirs, name)


def test_tokens_that_come_together_share_the_time_and_the_first_ones_have_none():
    registry = CollectorRegistry()
    tally = TokenTally("tiny", BUCKETS_S)
    registry.register(tally)
    tally.add(2, None)
    tally.add(4, 1.0)
    assert lines(registry, "vllm:generation_tokens") == ['vllm:generation_tokens_total{model_name="tiny"} 6.0']
    labels = {"model_name": "tiny"}
    name = "vllm:inter_token_latency_seconds"
    assert registry.get_sample_value(f"{name}_bucket", {**labels, "le": "0.01"}) == 0
    assert registry.get_sample_value(f"{name}_bucket", {**labels, "le": "0.5"}) == 4
    assert registry.get_sample_value(f"{name}_sum", labels) == 1.0
    assert repr(tally) == "TokenTally(6 tokens)"
