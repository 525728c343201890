"""Drafts take what nobody else needs: rows of prompts that are asked about are none of it."""

import pytest

from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import ManualClock, make_report, make_sampling
from dormouse_worker.engine.testing_executor import FakeExecutor
from tests.worker.engine.engine_kit import expected, finish


def make_engine(**settings):
    fields = {"max_num_seqs": 6, "max_num_batched_tokens": 16, "speculation_method": "ngram", **settings}
    report = make_report(num_gpu_blocks=40, max_model_len=32)
    executor = FakeExecutor(report)
    return build_engine(EngineSettings(model="m", **fields), report, (40, 0), executor, clock=ManualClock()), executor


def test_a_resumed_prompt_that_is_asked_about_and_its_drafts_share_the_rows():
    engine, executor = make_engine()
    prompt = list(range(7))
    answer = expected(prompt, 12)
    sampling = make_sampling(max_tokens=12, prompt_logprobs=0)
    engine.add(AddRequest("resumed", prompt, sampling, answer[:3], prediction_token_ids=answer))
    engine.add(AddRequest("behind", prompt, sampling))
    assert finish(engine, {"resumed": [], "behind": []}) == {"resumed": answer[3:], "behind": answer}
    assert all(sequence.num_tokens > 0 for batch in executor.batches for sequence in batch.sequences)
    assert any(sequence.draft_token_ids for batch in executor.batches for sequence in batch.sequences)


def test_what_is_predicted_wrongly_is_not_said():
    engine, executor = make_engine()
    prompt = list(range(7))
    answer = expected(prompt, 12)
    predicted = [*answer[:5], answer[5] + 1, *answer[6:]]
    engine.add(AddRequest("r", prompt, make_sampling(max_tokens=12), prediction_token_ids=predicted))
    assert finish(engine, {"r": []}) == {"r": answer}
    drafts = [list(sequence.draft_token_ids) for batch in executor.batches for sequence in batch.sequences]
    assert any(answer[5] + 1 in draft for draft in drafts)


@pytest.mark.parametrize("place", [0, 2, 5])
def test_drafts_behind_the_token_that_ends_an_answer_do_not_count_as_taken(place):
    engine, _ = make_engine()
    answer = expected([1, 2, 3], 12)
    sampling = make_sampling(max_tokens=12, stop_token_ids=(answer[place],))
    engine.add(AddRequest("r", [1, 2, 3], sampling, prediction_token_ids=answer))
    messages = []
    while (message := engine.step()) is not None:
        messages.append(message)
    told = [output for message in messages for output in message.outputs]
    assert [token for output in told for token in output.token_ids] == answer[: place + 1]
    num_passes = len([output for output in told if output.token_ids])
    counted = sum(sum(message.drafts.num_accepted_tokens_per_pos) for message in messages if message.drafts)
    assert counted == sum(output.accepted_prediction_tokens for output in told)
    is_last_sampled = place + 1 == counted + num_passes
    assert is_last_sampled or place + 2 == counted + num_passes, "the last pass brought drafts only"


def test_a_block_that_taken_drafts_filled_at_an_answers_end_is_known_to_who_comes_next():
    engine, _ = make_engine(num_speculative_tokens=4)
    prompt, answer = list(range(7)), expected(list(range(7)), 10)
    engine.add(AddRequest("r", prompt, make_sampling(max_tokens=10), prediction_token_ids=answer))
    assert finish(engine, {"r": []}) == {"r": answer}
    engine.add(AddRequest("next", [*prompt, *answer], make_sampling(max_tokens=1)))
    (output,) = engine.step().outputs
    assert output.cached_tokens == 16, "of 17 tokens all were computed but the last"


def test_beside_many_where_no_draft_is_worth_its_row_a_few_are_tried_and_nobody_else_is_asked():
    """The cost of a row is what is known of processors: the clock stands still."""
    report = make_report(num_gpu_blocks=800, max_model_len=64)
    executor = FakeExecutor(report)
    settings = EngineSettings(model="m", max_num_seqs=96, max_num_batched_tokens=512, speculation_method="ngram")
    engine = build_engine(settings, report, (800, 0), executor, clock=ManualClock())
    answers = {str(number): expected([number, 1], 40) for number in range(48)}
    for name, answer in answers.items():
        asked = AddRequest(name, [int(name), 1], make_sampling(max_tokens=40), prediction_token_ids=answer)
        assert engine.add(asked) is None
    assert finish(engine, {name: [] for name in answers}) == answers
    counts = [sum(len(each.draft_token_ids) for each in batch.sequences) for batch in executor.batches]
    assert counts[:15] == [0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 12]
    assert max(len(each.draft_token_ids) for batch in executor.batches for each in batch.sequences) == 1
    assert not any(engine._scheduler.request_ids)
