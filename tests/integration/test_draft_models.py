"""A draft model beside a model in real processes: it is told of, sleeps with it, and is missed by nobody."""

from __future__ import annotations

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from tests.integration.test_sleep import sleep, wake
from tests.worker.executor import draft_kit


def ask(worker, temperature):
    """Return what was said, and its usage."""
    params = pb.SamplingParams(temperature=temperature, seed=7, max_tokens=48, ignore_eos=True)
    request = pb.GenerateRequest(text="What does read do?", sampling_params=params)
    messages = list(worker.inference.Generate(request, timeout=60, metadata=proof(Role.GATEWAY)))
    return [token for each in messages for token in each.token_ids], messages[-1].usage


def test_it_drafts_over_every_sleep_and_without_it_the_same_is_said(start_worker, tiny_model, tmp_path):
    """One test, as each step begins where the last one ended: a worker's start takes seconds."""
    drafter = draft_kit.same(tmp_path / "drafter", tiny_model)
    worker = start_worker(tiny_model, "--speculation-method", "draft", "--speculation-model", str(drafter))
    worker.start()
    assert f"drafts by {drafter}" in worker.status().compute_path
    assert worker.status().report.draft_bytes > 0
    said = {temperature: ask(worker, temperature) for temperature in (0.0, 0.9)}
    assert sum(usage.draft_tokens for _, usage in said.values()) > 0
    assert sum(usage.accepted_draft_tokens for _, usage in said.values()) > 0
    for level in (1, 2, 3):
        sleep(worker, level)
        wake(worker)
        if level == 3:
            worker.start()
        assert {temperature: ask(worker, temperature)[0] for temperature in said} == {
            t: s for t, (s, _) in said.items()
        }
    (drafter / draft_kit.WEIGHTS).unlink()
    sleep(worker, 2)
    wake(worker)
    assert "no drafts, as the draft model did not come back" in worker.status().compute_path
    for temperature, (tokens, _) in said.items():
        again, usage = ask(worker, temperature)
        assert again == tokens
        assert usage.draft_tokens == 0
