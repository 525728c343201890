"""What a sequence proposes from its own text, and what is counted of it."""

from dormouse_worker.engine.drafts.speculation import Speculation
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling


def make_request(prompt):
    return Request("r", prompt, make_sampling(max_tokens=20), arrival_s=0.0)


def test_a_sequence_that_repeats_itself_proposes_what_came_then_which_nobody_predicted():
    speculation = Speculation(max_tokens=4, max_model_len=64)
    request = make_request([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4])
    found = speculation.propose(request, 1, 4)
    assert found == (5, 6, 7, 8)[: len(found)] != ()
    request.num_draft_tokens = len(found)
    speculation.settle(request, 1)
    counts = speculation.take_counts()
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens_per_pos) == (
        1,
        len(found),
        [1, 0, 0, 0],
    )
    assert (request.num_accepted_prediction_tokens, request.num_rejected_prediction_tokens) == (0, 0)
    assert speculation.take_counts() is None


def test_each_shows_what_it_has():
    speculation = Speculation(max_tokens=4, max_model_len=64)
    request = make_request([1, 2, 1, 2])
    speculation.propose(request, 1, 4)
    shown = f"{speculation!r} {request.drafts!r}"
    assert all(word in shown for word in ("4 tokens", "RowPrice", "Source", "Acceptance", "in IndexedText(4 tokens"))
