"""Questions of one call in the engine: one line, one pass, what they have in common computed once."""

from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.ipc import AddRequest, StepOutputs
from dormouse_worker.common.task_messages import AddDecision
from dormouse_worker.engine.decisions import requests_of
from dormouse_worker.engine.validation import unknown_token
from tests.worker.engine.test_engine import Setup

STATE = list(range(10, 23))  # three blocks of four tokens, and one


def decision(*branches, named=(5,), **fields):
    ids = [f"q{number}" for number in range(len(branches))]
    return AddDecision(ids, STATE, list(branches), [list(named)] * len(branches), **fields)


def test_each_question_is_a_request_of_one_token_that_names_its_labels():
    first, second = requests_of(decision([1], [2, 3], named=(7, 9), priority=4, cache_salt="s", adapter="a"))
    assert (first.request_id, first.prompt_token_ids, second.prompt_token_ids) == ("q0", [*STATE, 1], [*STATE, 2, 3])
    assert (first.priority, first.cache_salt, first.adapter) == (4, "s", "a")
    sampling = first.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.logprobs) == (1, 0, 0)
    assert sampling.logprob_token_ids == (7, 9)


def test_questions_share_the_blocks_of_their_state_in_the_pass_that_computes_it():
    setup = Setup(num_blocks=40, seqs=8, tokens=64)
    for request in requests_of(decision([1], [2, 3], [4])):
        assert setup.engine.add(request) is None
    outputs = setup.engine.step().outputs
    assert [output.finish_reason for output in outputs] == ["length"] * 3
    (batch,) = setup.executor.batches
    assert [(one.start, one.end) for one in batch.sequences] == [(0, 14), (12, 15), (12, 14)]
    assert [output.cached_tokens for output in outputs] == [0, 12, 12]
    assert setup.run() == {}


def test_a_state_that_is_longer_than_a_pass_is_computed_once_too():
    setup = Setup(num_blocks=40, seqs=8, tokens=8)
    for request in requests_of(decision([1], [2], [3])):
        setup.engine.add(request)
    setup.run()
    assert sum(one.num_tokens for batch in setup.executor.batches for one in batch.sequences) == 14 + 2 + 2


def test_the_controller_hands_all_of_them_over_before_it_computes(profiled):
    profiled.command(InitializeCache(10, 0))
    profiled.controller.handle(decision([1], [2]))
    profiled.controller.step()
    told = [message for message in profiled.sent if isinstance(message, StepOutputs)]
    assert not any(message.failed for message in told)
    assert profiled.controller.has_work


def test_a_label_that_the_model_does_not_have_is_refused():
    (request,) = requests_of(decision([1], named=(999,)))
    assert isinstance(request, AddRequest)
    assert unknown_token(request, 100) == "logprob_token_ids has 999; allowed are ids below the vocabulary size 100"
    assert unknown_token(request, 1000) is None
