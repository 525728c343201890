"""What a sequence proposes from its own text, and what is counted of it."""

from dataclasses import replace

import pytest

from dormouse_worker.engine.batch import Batch, ScheduledSequence
from dormouse_worker.engine.drafts.pace import RowCosts
from dormouse_worker.engine.forward_pass import Limits, Progress
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.speculation.speculation import Speculation
from dormouse_worker.engine.testing import make_sampling

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=8, max_model_len=64, max_draft_tokens=4)
ALONE = RowCosts(4).of(1)
RECALLING = replace(LIMITS, recalls_answers=True)


def make_request(prompt, **fields):
    return Request("r", prompt, make_sampling(max_tokens=20), arrival_s=0.0, **fields)


def make_batch(sequences):
    return Batch(is_fresh=False, released=(), swap_out=(), swap_in=(), new=(), sequences=tuple(sequences))


def remember(speculation, answer, **fields):
    request = make_request([7, 8, 9], output_token_ids=list(answer), **fields)
    speculation.note(Progress(request, answer[-1:], None, "stop"), num_right=0)


def test_what_an_answer_said_is_proposed_to_the_next_of_the_same_salt_and_adapter_only():
    speculation = Speculation(RECALLING)
    remember(speculation, [1, 2, 3, 4], cache_salt="a", adapter="x")
    for salt, adapter, found in (("a", "x", (4,)), ("b", "x", ()), ("a", "", ()), ("", "", ())):
        asked = make_request([0, 8, 9, 1, 2, 3], cache_salt=salt, adapter=adapter)
        assert speculation.propose(asked, ALONE, 4) == found
    speculation.forget()
    assert speculation.propose(make_request([0, 8, 9, 1, 2, 3], cache_salt="a", adapter="x"), ALONE, 4) == ()


def test_who_does_not_recall_remembers_nothing():
    speculation = Speculation(LIMITS)
    remember(speculation, [1, 2, 3, 4])
    speculation.forget()
    assert speculation.propose(make_request([0, 8, 9, 1, 2, 3]), ALONE, 4) == ()


def test_who_was_right_most_often_is_asked_first():
    speculation = Speculation(RECALLING)
    remember(speculation, [1, 2, 3, 4, 30])
    request = make_request([3, 4, 40, 1, 2, 3, 4])
    assert speculation.propose(request, ALONE, 4)[:1] == (40,), "its own text goes before an earlier answer"
    for _ in range(5):
        request.num_draft_tokens = 1
        speculation.note(Progress(request, [1], None, None), num_right=0)
    assert speculation.propose(request, ALONE, 4)[:1] == (30,)


def test_a_sequence_that_repeats_itself_proposes_what_came_then_which_nobody_predicted():
    speculation = Speculation(LIMITS)
    request = make_request([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4])
    found = speculation.propose(request, ALONE, 4)
    assert found == (5, 6, 7, 8)[: len(found)] != ()
    request.num_draft_tokens = len(found)
    speculation.note(Progress(request, [5, 9], None, None), num_right=1)
    counts = speculation.take_counts()
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens_per_pos) == (
        1,
        len(found),
        [1, 0, 0, 0],
    )
    assert (request.num_accepted_prediction_tokens, request.num_rejected_prediction_tokens) == (0, 0)
    assert speculation.take_counts() is None


def test_what_a_grammar_forces_is_proposed_before_what_the_text_says_and_once():
    speculation = Speculation(LIMITS)
    request = make_request([1, 2, 3, 4, 9, 1, 2, 3, 4], expected_token_ids=[7, 8])
    assert speculation.propose(request, ALONE, 4) == (7, 8)
    request.output_token_ids, request.expected_token_ids = [7, 8, 1, 2, 3, 4], ()
    assert speculation.propose(request, ALONE, 4)[:1] == (7,), "what followed these four last"
    request.output_token_ids += [5, 6]
    assert speculation.propose(request, ALONE, 4) == ()


@pytest.mark.parametrize(("num_outputs", "most", "count"), [(1, 3, 3), (1, 9, 4), (17, 9, 2)])
def test_no_more_are_proposed_than_are_asked_for_than_limits_bear_and_than_are_left(num_outputs, most, count):
    """One of the tokens that are left is the pass's own."""
    request = make_request([1, 2], expected_token_ids=[*range(40, 50)], output_token_ids=[3] * num_outputs)
    assert Speculation(LIMITS).propose(request, ALONE, most) == tuple(range(40, 40 + count))


@pytest.mark.parametrize(
    ("num_left", "num_drafts", "count"), [(4, 0, 2), (3, 0, 1), (4, 1, 1), (3, 1, 0), (2, 1, 0), (20, 0, 0)]
)
def test_of_the_model_beside_no_more_are_wanted_than_come_behind_the_next_pass(num_left, num_drafts, count):
    """That pass has a token of its own, and the one behind it too. Before the first token nobody is asked."""
    speculation = Speculation(replace(LIMITS, asks_model=True))
    request = make_request([1, 2], output_token_ids=[*range(10, 30 - num_left)])
    assert speculation.propose(request, ALONE, 4) == ()
    assert speculation.want(request, 1, 9, num_drafts) == count
    assert request.drafts.num_read == (request.num_tokens if count else 0)


def test_every_draft_of_a_request_is_counted_once():
    speculation = Speculation(LIMITS)
    request = make_request([50, 51], prediction_token_ids=[*range(1, 17)])
    request.sampling = make_sampling(max_tokens=40)
    for right in (3, 1, 1):
        proposed = speculation.propose(request, ALONE, 4)
        request.num_draft_tokens = len(proposed)
        told = [*proposed[:right], proposed[right]]  # the last one is the row's own, which the text foresaw, too
        request.output_token_ids += told
        speculation.note(Progress(request, told, None, None), num_right=right)
    counts = speculation.take_counts()
    num_proposed = counts.num_draft_tokens
    assert (counts.num_drafts, counts.num_accepted_tokens_per_pos) == (3, [3, 1, 1, 0])
    assert (request.num_scored_draft_tokens, request.num_accepted_draft_tokens) == (num_proposed, 5)
    assert (request.num_accepted_prediction_tokens, request.num_rejected_prediction_tokens) == (5, num_proposed - 5)
    assert num_proposed > 8
    assert speculation.take_counts() is None


def test_a_pass_in_which_somebody_reads_a_prompt_tells_nothing_of_what_rows_cost():
    speculation = Speculation(LIMITS)
    before = repr(speculation.costs)
    decoding, reading = (ScheduledSequence(str(num), 9 - num, 9, (), samples=True) for num in (1, 2))
    speculation.observe(make_batch([decoding, reading]), 0.01)
    assert repr(speculation.costs) == before
    speculation.observe(make_batch([decoding]), 0.01)
    speculation.observe(make_batch([ScheduledSequence("1", 8, 11, (), samples=True, draft_token_ids=(1, 2))]), 0.5)
    assert repr(speculation.costs) != before


def test_each_shows_what_it_has():
    speculation = Speculation(LIMITS)
    request = make_request([1, 2, 1, 2])
    speculation.propose(request, ALONE, 4)
    shown = f"{speculation!r} {request.drafts!r}"
    assert all(word in shown for word in ("4 tokens", "RowCosts", "Source", "Acceptance", "in IndexedText(4 tokens"))
