"""What ranks are told: everything once, then what is new."""

import pytest

from dormouse_worker.engine.block_tables import ABSENT
from dormouse_worker.engine.rank_view import RankView
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling


def make_request(request_id="a", outputs=()):
    return Request(request_id, [1, 2, 3], make_sampling(), arrival_s=0.0, output_token_ids=list(outputs))


def test_a_sequence_is_introduced_once():
    view, request = RankView(block_size=4), make_request(outputs=[7])
    new = view.introduce(request)
    assert (new.prompt_token_ids, new.output_token_ids, new.num_tokens) == ([1, 2, 3], [7], 4)
    assert view.introduce(request) is None


def test_what_is_introduced_does_not_grow_with_the_request():
    view, request = RankView(block_size=4), make_request()
    new = view.introduce(request)
    request.output_token_ids.append(9)
    assert new.output_token_ids == []


def test_only_new_blocks_are_sent_and_absent_ones_keep_their_places():
    view, request = RankView(block_size=4), make_request()
    view.introduce(request)
    first = view.schedule(request, ([4, 5], [ABSENT, 6]), end=3)
    assert (first.start, first.end, first.new_block_ids, first.samples) == (0, 3, ([4, 5], [0, 6]), True)
    request.num_computed_tokens = 3
    request.output_token_ids += [8, 9]
    second = view.schedule(request, ([4, 5, 7], [ABSENT, ABSENT]), end=4)
    assert (second.start, second.new_block_ids, second.samples) == (3, ([7], []), False)


def test_released_sequences_are_told_once_and_may_come_again():
    view, request = RankView(block_size=4), make_request()
    assert view.take_released() == (True, ())
    view.introduce(request)
    view.release("a")
    view.release("a")
    view.release("unknown")
    assert repr(view) == "RankView(0 sequences, 1 to release, fresh=False)"
    assert view.take_released() == (False, ("a",))
    assert view.take_released() == (False, ())
    assert view.introduce(request) is not None


def test_after_a_reset_everything_is_told_anew():
    view, request = RankView(block_size=4), make_request()
    view.introduce(request)
    view.take_released()
    view.reset()
    assert view.take_released() == (True, ())
    assert view.introduce(request) is not None


def test_a_decoding_sequence_is_scheduled_at_once_while_its_known_blocks_have_room():
    view, request = RankView(block_size=4), make_request()
    assert view.schedule_decode(request) is None  # three tokens are pending
    view.introduce(request)
    request.num_computed_tokens = 2
    assert view.schedule_decode(request) is None  # its block was never told
    view.schedule(request, ([5],), end=3)
    found = []
    while (scheduled := view.schedule_decode(request)) is not None:
        found.append((scheduled.start, scheduled.end, scheduled.new_block_ids, scheduled.samples))
        request.num_computed_tokens += 1
        request.output_token_ids.append(9)
    assert found == [(2, 3, ([],), True), (3, 4, ([],), True)]


@pytest.mark.parametrize("forget", [lambda view: view.release("a"), lambda view: view.reset()])
def test_what_the_ranks_forgot_is_looked_at_again(forget):
    view, request = RankView(block_size=4), make_request()
    request.num_computed_tokens = 2
    view.introduce(request)
    view.schedule(request, ([5],), end=3)
    assert view.schedule_decode(request) is not None
    forget(view)
    assert view.schedule_decode(request) is None


def test_the_layer_group_with_the_fewest_blocks_decides_whether_there_is_room():
    view, request = RankView(block_size=4, num_groups=2), make_request(outputs=[7, 8])
    request.num_computed_tokens = 4
    view.introduce(request)
    view.schedule(request, ([5, 6], [7]), end=5)
    assert view.schedule_decode(request) is None


def test_one_token_alone_is_no_decoding_of_a_sequence_that_the_ranks_do_not_know():
    request = Request("a", [1], make_sampling(), arrival_s=0.0)
    assert RankView(block_size=4).schedule_decode(request) is None
