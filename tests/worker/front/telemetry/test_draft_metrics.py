"""What became of drafts is counted under vLLM's names."""

from __future__ import annotations

from dormouse_worker.common.ipc import DraftCounts, StepOutputs
from dormouse_worker.front.telemetry.metrics import WorkerMetrics


def test_drafts_are_counted_by_place_and_failures_of_the_draft_model_apart():
    metrics = WorkerMetrics("tiny", clock=lambda: 0.0)
    step = StepOutputs([], running=1, waiting=0, kv_cache_usage=0.5, drafts=DraftCounts(3, 7, [3, 1, 0], 2))
    metrics.on_load(step)
    metrics.on_load(step)
    lines = [line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if line[0] != "#"]
    said = {name: float(value) for name, value in lines}
    assert said['vllm:spec_decode_num_drafts_total{model_name="tiny"}'] == 6
    assert said['vllm:spec_decode_num_draft_tokens_total{model_name="tiny"}'] == 14
    assert said['vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"}'] == 8
    per_pos = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="tiny",position="%d"}'
    assert [said[per_pos % position] for position in range(3)] == [6, 2, 0]
    assert said['dormouse_draft_model_failures_total{model_name="tiny"}'] == 4
