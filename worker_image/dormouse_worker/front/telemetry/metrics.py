"""The worker's Prometheus metrics, under the names that dashboards and autoscalers of the field already read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from dormouse_worker.common.ipc import EngineStatus, StepOutputs
from dormouse_worker.front.requests.pooled import PooledAnswer
from dormouse_worker.front.requests.reads import Read
from dormouse_worker.front.requests.streams import OutputStream
from dormouse_worker.front.telemetry.adapter_info import AdapterInfo, Names
from dormouse_worker.front.telemetry.store_metrics import StoreMetrics
from dormouse_worker.front.telemetry.token_counter import TokenTally

FAST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
STEP_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
LONG_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all", "standby")  # by sleep level; all but the last are vLLM's


class WorkerMetrics:
    """Owns the registry. Implements `RequestEvents`."""

    def __init__(self, model_name: str, *, clock: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        self._clock = clock
        self._model_name = model_name
        self._last_sleep_s = self._last_wake_s = 0.0
        self._running = self._gauge("vllm:num_requests_running", "Requests in the batch.")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests that wait for a place in the batch.")
        self._usage = self._gauge("vllm:kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.")
        self._residual = self._gauge("dormouse_gpu_residual_bytes", "Memory that the engine still holds asleep.")
        self._host_copy = self._gauge(
            "dormouse_host_copy_bytes", "Host memory that holds a copy of weights or KV cache, for a fast wake."
        )
        self._blocks = self._gauge("dormouse_kv_blocks", "Blocks of KV cache that this rank reported.", "rank")
        self._allocated = self._gauge(
            "dormouse_kv_blocks_allocated", "Blocks of KV cache that there are; 0 = none yet."
        )
        self._silence = self._gauge(
            "dormouse_engine_silence_seconds", "Since the engine was last heard of, 0 while there is none."
        )
        ProcessCollector(namespace="dormouse", registry=self._registry)  # of the front; engines come and go
        self._sleep_state = self._gauge("vllm:engine_sleep_state", "1 for the present sleep state.", "sleep_state")
        self._config = self._gauge(
            "vllm:cache_config_info",
            "The KV cache's configuration, in labels.",
            *("block_size", "num_gpu_blocks", "num_cpu_blocks", "gpu_memory_utilization"),
        )
        self._restarts = self._counter("dormouse_engine_restarts", "Engine processes started after the first.")
        self._tokens = TokenTally(model_name, STEP_S)
        self._registry.register(self._tokens)
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens of accepted requests.")
        self._success = self._counter("vllm:request_success", "Ended requests by reason.", "finished_reason")
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", FAST_S)
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", LONG_S)
        self._prefix_queries = self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self._prefix_hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._image_queries = self._counter(
            "vllm:mm_cache_queries", "Images, steps of videos and sounds of requests that began to run."
        )
        self._image_hits = self._counter("vllm:mm_cache_hits", "Those of these that were not encoded anew.")
        self._preemptions = self._counter("vllm:num_preemptions", "Times that a running request had to wait again.")
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Passes that a sequence had drafts in.")
        self._draft_tokens = self._counter("vllm:spec_decode_num_draft_tokens", "Tokens of drafts.")
        self._accepted_tokens = self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Tokens of drafts that were taken."
        )
        self._accepted_per_pos = self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Tokens of drafts that were taken, by place.", "position"
        )
        self._draft_failures = self._counter(
            "dormouse_draft_model_failures", "Times that the draft model was asked and failed, or was not there."
        )
        self._not_finite = self._counter(
            "dormouse_requests_not_finite", "Requests ended because the model's logits were not finite."
        )
        self._store = StoreMetrics(model_name, self._registry)
        self._prefill = self._histogram("vllm:request_prefill_time_seconds", "First scheduled to first token.", LONG_S)
        self._decode = self._histogram("vllm:request_decode_time_seconds", "First token to last token.", LONG_S)
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Arrival to first scheduled.", LONG_S)
        self._slept = self._histogram("dormouse_sleep_seconds", "Duration of falling asleep.", LONG_S)
        self._woke = self._histogram("dormouse_wake_seconds", "Duration of waking up.", LONG_S, "phase")
        self._woke.labels(model_name, "total")  # from the start: a rate does not see a series' first value
        self.on_load(StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0))
        self._residual.set(0)
        self._host_copy.set(0)
        self._tell_sleep_state(0)

    def __repr__(self) -> str:
        return f"WorkerMetrics({self._model_name})"

    def follow_engine(self, silence_s: Callable[[], float]) -> None:
        """Show how long the engine has been silent, as this says."""
        self._silence.set_function(silence_s)

    def follow_adapters(self, max_lora: int, running: Names, waiting: Names) -> None:
        """Show which adapters requests run with and wait for, as these say."""
        self._registry.register(AdapterInfo(max_lora, running, waiting, self._clock))

    def text(self) -> bytes:
        """Return the exposition in Prometheus' text format."""
        return generate_latest(self._registry)

    def on_prompt(self, num_tokens: int) -> None:
        """A request was handed to the engine."""
        self._prompt.inc(num_tokens)

    def on_tokens(self, stream: OutputStream, num_tokens: int, previous_token_s: float | None) -> None:
        """See `RequestEvents`."""
        times = stream.times
        assert times.last_token_s is not None, "tokens came"
        if previous_token_s is not None:
            self._tokens.add(num_tokens, times.last_token_s - previous_token_s)
            return
        self._tokens.add(num_tokens, None)
        self._ttft.observe(times.last_token_s - times.arrival_s)
        self._queue.observe(times.queue_s)
        self._prefill.observe(times.prefill_s)

    def on_pooled(self, answer: PooledAnswer[Any] | Read) -> None:
        """See `RequestEvents`."""
        self._queue.observe(answer.times.queue_s)
        self._prefill.observe(answer.times.prefill_s)

    def on_end(self, stream: OutputStream | PooledAnswer[Any] | Read, reason: str) -> None:
        """See `RequestEvents`."""
        self._success.labels(self._model_name, reason).inc()
        if reason != "error":
            self._e2e.observe(self._clock() - stream.times.arrival_s)
            if stream.times.first_token_s is not None:
                self._decode.observe(stream.times.decode_s)

    def on_load(self, step: StepOutputs) -> None:
        """Take the load after a step, and what it counted."""
        self._running.set(step.running)
        self._waiting.set(step.waiting)
        self._usage.set(step.kv_cache_usage)
        if step.prefix_queries:
            self._prefix_queries.inc(step.prefix_queries)
            self._prefix_hits.inc(step.prefix_hits)
        if step.mm_cache_queries:
            self._image_queries.inc(step.mm_cache_queries)
            self._image_hits.inc(step.mm_cache_hits)
        if step.preemptions:
            self._preemptions.inc(step.preemptions)
        if step.not_finite:
            self._not_finite.inc(step.not_finite)
        if step.drafts is not None:
            self._drafts.inc(step.drafts.num_drafts)
            self._draft_failures.inc(step.drafts.num_model_failures)
            self._draft_tokens.inc(step.drafts.num_draft_tokens)
            self._accepted_tokens.inc(sum(step.drafts.num_accepted_tokens_per_pos))
            for position, count in enumerate(step.drafts.num_accepted_tokens_per_pos):
                self._accepted_per_pos.labels(self._model_name, str(position)).inc(count)
        if step.kv_store is not None:
            self._store.on_counts(step.kv_store)

    def on_engine_restart(self) -> None:
        """A new engine process is started in place of one that died."""
        self._restarts.inc()

    def on_status(self, status: EngineStatus) -> None:
        """Take the engine's state."""
        self._residual.set(status.residual_bytes)
        self._host_copy.set(status.host_copy_bytes)
        self._allocated.set(status.num_gpu_blocks)
        self._tell_sleep_state(status.sleep_level)
        if status.last_sleep_seconds not in {0.0, self._last_sleep_s}:
            self._slept.observe(status.last_sleep_seconds)
        if status.last_wake_seconds not in {0.0, self._last_wake_s}:
            for phase, seconds in {"total": status.last_wake_seconds, **status.wake_phases}.items():
                self._woke.labels(self._model_name, phase).observe(seconds)
        self._last_sleep_s, self._last_wake_s = status.last_sleep_seconds, status.last_wake_seconds
        if status.report is None:
            return
        self._blocks.labels(self._model_name, str(status.report.rank)).set(status.report.num_gpu_blocks)
        self._config.clear()
        config = (status.report.block_size, status.num_gpu_blocks, status.num_cpu_blocks)
        self._config.labels(self._model_name, *map(str, config), str(status.report.gpu_memory_utilization)).set(1)

    def _tell_sleep_state(self, level: int) -> None:
        for number, name in enumerate(SLEEP_STATES):
            self._sleep_state.labels(self._model_name, name).set(number == level)

    # A metric without labels of its own is returned as the model's child: looking it up again costs, for every step.

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        gauge = Gauge(name, text, ("model_name", *labels), registry=self._registry)
        return gauge if labels else gauge.labels(self._model_name)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(name, text, ("model_name", *labels), registry=self._registry)
        return counter if labels else counter.labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        histogram = Histogram(name, text, ("model_name", *labels), registry=self._registry, buckets=buckets)
        return histogram if labels else histogram.labels(self._model_name)
