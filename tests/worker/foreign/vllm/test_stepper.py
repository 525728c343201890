"""Requests through vLLM's core: pieces become outputs, and every request ends once."""

from __future__ import annotations

import msgspec
import pytest

from dormouse_worker.common.commands import AbortAll, InitializeCache
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import AbortRequests
from dormouse_worker.common.task_messages import AddDecision
from dormouse_worker.engine.loop import EngineBroken, EngineLoop
from dormouse_worker.engine.testing import make_add
from dormouse_worker.foreign.vllm.interface import Piece
from dormouse_worker.foreign.vllm.stepper import VllmStepper
from dormouse_worker.foreign.vllm.testing import MAX_MODEL_LEN, StandInCore


def outputs_of(steps, request_id="a"):
    return [output for step in steps for output in step.outputs if output.request_id == request_id]


def test_a_request_has_its_tokens_one_by_one_and_one_end(desk):
    desk.controller.handle(make_add("a", max_tokens=3))
    outputs = outputs_of(desk.steps())
    assert [len(output.token_ids) for output in outputs] == [1, 1, 1]
    assert [output.finish_reason for output in outputs] == [None, None, "length"]
    first = outputs[0]
    assert (first.queue_seconds, first.prefill_seconds, first.logprobs) == (0.001, 0.002, None)


def test_the_load_is_told_with_every_step(desk):
    desk.controller.handle(make_add("a", max_tokens=2))
    steps = desk.steps()
    assert [(step.running, step.waiting) for step in steps] == [(1, 0), (0, 0)]
    assert steps[0].kv_cache_usage == pytest.approx(1 / 40)


def test_preemptions_are_told_with_the_step_that_saw_them(desk):
    desk.controller.handle(make_add("a", max_tokens=3))
    desk.core.preemptions = 2
    assert [step.preemptions for step in desk.steps()] == [2, 0, 0]


def test_logprobs_are_as_many_as_were_asked_for(desk):
    desk.controller.handle(make_add("a", logprobs=2, max_tokens=1))
    (output,) = outputs_of(desk.steps())
    (told,) = output.logprobs
    assert (told.sampled, told.top_ids[0], len(told.top_ids), len(told.top_logprobs)) == (
        -1.0,
        output.token_ids[0],
        2,
        2,
    )


def test_a_prompts_logprobs_come_before_its_first_token_in_parts(desk):
    prompt = [token % 60 for token in range(400)]
    desk.controller.handle(make_add("a", prompt, prompt_logprobs=1, max_tokens=1))
    *parts, last = outputs_of(desk.steps())
    assert [(len(part.prompt_logprobs), part.token_ids) for part in parts] == [(256, []), (143, [])]
    assert (len(last.token_ids), last.prompt_logprobs) == (1, None)


def test_who_is_aborted_hears_so_once_and_frees_its_place(desk):
    for request_id in ("a", "b"):
        desk.controller.handle(make_add(request_id, max_tokens=100))
    desk.controller.step()
    desk.outputs()
    desk.controller.handle(AbortRequests(["a", "unknown"]))
    (step,) = desk.outputs()
    assert [(output.request_id, output.finish_reason) for output in step.outputs] == [("a", "abort")]
    assert step.running == 1
    desk.run(AbortAll())
    (step,) = desk.outputs()
    assert [output.request_id for output in step.outputs] == ["b"]


def test_what_was_just_aborted_keeps_nobody_from_another_number_of_blocks(desk):
    """VLLM forgets who has ended in its next step only."""
    desk.controller.handle(make_add("a", max_tokens=100))
    desk.controller.handle(AbortRequests(["a"]))
    assert desk.controller.has_work
    assert desk.run(InitializeCache(30)).error_reason == ""


def test_while_a_request_runs_the_number_of_blocks_stays(desk):
    desk.controller.handle(make_add("a", max_tokens=100))
    assert desk.run(InitializeCache(30)).error_reason == "WrongState"
    assert desk.core.num_blocks == 40


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"output_token_ids": [4]}, "resume is set"),
        ({"adapter": "digest"}, "adapter is set"),
        ({"prompt_token_ids": []}, "prompt has 0 tokens"),
        ({"prompt_token_ids": [1] * MAX_MODEL_LEN}, f"allowed are 1 to {MAX_MODEL_LEN - 1}"),
        ({"sampling": make_add(grammar=Grammar("root ::= 'a'", (2,))).sampling}, "structured_outputs is set"),
        ({"sampling": make_add(temperature=-1.0).sampling}, "vLLM refuses the request: temperature"),
    ],
    ids=str,
)
def test_what_vllm_is_not_given_is_refused_by_name(desk, changed, word):
    desk.controller.handle(msgspec.structs.replace(make_add("a"), **changed))
    (step,) = desk.outputs()
    assert word in step.failed["a"]
    assert not desk.controller.has_work


def test_decisions_ask_for_named_tokens_and_are_refused(desk):
    desk.controller.handle(AddDecision(["a"], [1, 2], [[3]], [[4, 5]]))
    (step,) = desk.outputs()
    assert "logprob_token_ids is set" in step.failed["a"]


class Wire:
    """Implements `Transport`; nobody says anything."""

    def receive(self, timeout_s):
        del timeout_s
        return []

    def send(self, message):
        pass


def test_after_a_step_that_failed_its_requests_know_and_the_process_ends(desk):
    """What vLLM holds then is unknown; the front starts another engine."""
    desk.controller.handle(make_add("a", max_tokens=100))
    desk.controller.step()
    desk.outputs()
    desk.core.broken = RuntimeError("a kernel")
    with pytest.raises(EngineBroken):
        EngineLoop(Wire(), desk.controller).turn()
    (step,) = desk.outputs()
    assert step.failed == {"a": "the step failed: RuntimeError: a kernel"}


def test_an_error_of_vllms_is_one():
    core = StandInCore()
    stepper = VllmStepper(core, MAX_MODEL_LEN)
    stepper.add(make_add("a", max_tokens=5))
    core._advance = lambda _: Piece("a", [], "error")
    step = stepper.step()
    assert (step.failed, step.outputs) == ({"a": "vLLM ended it with an error"}, [])
    assert stepper.num_requests == 0


def test_when_it_rests_nobody_waits(desk):
    desk.controller.rest()
    core = StandInCore()
    stepper = VllmStepper(core, MAX_MODEL_LEN)
    stepper.add(make_add("a"))
    with pytest.raises(RuntimeError, match="1 requests are unfinished"):
        stepper.check_integrity()
