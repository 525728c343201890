"""What a sequence proposes from its own text, and what is counted of it."""

from dataclasses import replace

from dormouse_worker.engine.forward_pass import Limits, Progress
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.speculation.speculation import Speculation
from dormouse_worker.engine.testing import make_sampling

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=8, max_model_len=64, max_draft_tokens=4)
RECALLING = replace(LIMITS, recalls_answers=True)


def make_request(prompt, **fields):
    return Request("r", prompt, make_sampling(max_tokens=20), arrival_s=0.0, **fields)


def remember(speculation, answer, **fields):
    request = make_request([7, 8, 9], output_token_ids=list(answer), **fields)
    speculation.note(Progress(request, answer[-1:], None, "stop"), num_right=0)


def test_what_an_answer_said_is_proposed_to_the_next_of_the_same_salt_and_adapter_only():
    speculation = Speculation(RECALLING)
    remember(speculation, [1, 2, 3, 4], cache_salt="a", adapter="x")
    for salt, adapter, found in (("a", "x", (4,)), ("b", "x", ()), ("a", "", ()), ("", "", ())):
        asked = make_request([0, 8, 9, 1, 2, 3], cache_salt=salt, adapter=adapter)
        assert speculation.propose(asked, 1, 4) == found
    speculation.forget()
    assert speculation.propose(make_request([0, 8, 9, 1, 2, 3], cache_salt="a", adapter="x"), 1, 4) == ()


def test_who_does_not_recall_remembers_nothing():
    speculation = Speculation(LIMITS)
    remember(speculation, [1, 2, 3, 4])
    speculation.forget()
    assert speculation.propose(make_request([0, 8, 9, 1, 2, 3]), 1, 4) == ()


def test_who_was_right_most_often_is_asked_first():
    speculation = Speculation(RECALLING)
    remember(speculation, [1, 2, 3, 4, 30])
    request = make_request([3, 4, 40, 1, 2, 3, 4])
    assert speculation.propose(request, 1, 4)[:1] == (40,), "its own text goes before an earlier answer"
    for _ in range(5):
        request.num_draft_tokens = 1
        speculation.note(Progress(request, [1], None, None), num_right=0)
    assert speculation.propose(request, 1, 4)[:1] == (30,)


def test_a_sequence_that_repeats_itself_proposes_what_came_then_which_nobody_predicted():
    speculation = Speculation(LIMITS)
    request = make_request([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4])
    found = speculation.propose(request, 1, 4)
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
    assert speculation.propose(request, 1, 4) == (7, 8)
    request.output_token_ids, request.expected_token_ids = [7, 8, 1, 2, 3, 4], ()
    assert speculation.propose(request, 1, 4)[:1] == (7,), "what followed these four last"
    request.output_token_ids += [5, 6]
    assert speculation.propose(request, 1, 4) == ()


def test_each_shows_what_it_has():
    speculation = Speculation(LIMITS)
    request = make_request([1, 2, 1, 2])
    speculation.propose(request, 1, 4)
    shown = f"{speculation!r} {request.drafts!r}"
    assert all(word in shown for word in ("4 tokens", "RowCosts", "Source", "Acceptance", "in IndexedText(4 tokens"))
