"""The scheduler and log-probabilities of prompts: rows with logits are as many as sequences may run."""

from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling
from tests.worker.engine.scheduler_kit import add, make_scheduler, step


def test_a_chunk_takes_the_rows_that_running_sequences_leave():
    scheduler = make_scheduler(tokens=16, seqs=4)
    add(scheduler, "a", 9, prompt_logprobs=0)
    add(scheduler, "b", 2)
    assert step(scheduler) == {"a": (0, 4, False)}
    assert step(scheduler) == {"a": (4, 8, False)}
    assert step(scheduler) == {"a": (8, 9, True), "b": (0, 2, True)}
    assert step(scheduler) == {"a": (9, 10, True), "b": (2, 3, True)}


def test_output_of_another_worker_needs_no_rows():
    scheduler = make_scheduler(tokens=16, seqs=2)
    request = Request("a", [1] * 4, make_sampling(prompt_logprobs=0, max_tokens=9), arrival_s=0.0)
    request.output_token_ids += [2] * 6
    scheduler.add(request)
    assert [step(scheduler)["a"][:2] for _ in range(3)] == [(0, 2), (2, 4), (4, 10)]


def test_every_running_sequence_keeps_a_row():
    scheduler = make_scheduler(tokens=16, seqs=4)
    add(scheduler, "a", 2)
    step(scheduler)
    add(scheduler, "b", 9, prompt_logprobs=0)
    assert step(scheduler) == {"a": (2, 3, True), "b": (0, 3, False)}
