"""A sequence's drafts take what is left of a pass, and no more than any of its budgets has."""

import pytest

from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.block_tables import BlockTables, CacheLayout, Prefix
from dormouse_worker.engine.forward_pass import Limits, Pass
from dormouse_worker.engine.images.encoder_cache import EncoderCache
from dormouse_worker.engine.images.turn import ImageTurn
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.speculation.speculation import Speculation
from dormouse_worker.engine.speculation.turn import NO_DRAFTS, Drafting, DraftTurn
from dormouse_worker.engine.testing import make_sampling

PREDICTED = [5, 6, 7, 8]


def draft(
    *, tokens_left=64, logit_rows=9, draft_rows=9, num_blocks=8, num_running=1, prompt_left=1, model=False, **fields
):
    """Return what a sequence of three tokens, in a block of four, does about drafts, of which it has four."""
    request = Request(
        "r", [1, 2, 3], make_sampling(max_tokens=20), arrival_s=0.0, prediction_token_ids=PREDICTED, **fields
    )
    request.num_computed_tokens = request.num_tokens - prompt_left
    tables = BlockTables(BlockPool(num_blocks), CacheLayout(4))
    assert tables.admit("r", Prefix(0, ([],)), 3, 3)
    limits = Limits(max_num_seqs=8, max_num_batched_tokens=8, max_model_len=32, max_draft_tokens=4, asks_model=model)
    current = Pass(tokens_left, logit_rows, ImageTurn(EncoderCache(), 8, ()), spare_draft_rows=draft_rows)
    turn = DraftTurn(Speculation(limits), tables, current, num_chosen=1, num_running=num_running)
    return turn.draft(request, current)


def test_with_room_for_all_all_are_scored():
    assert draft() == Drafting((5, 6, 7, 8))


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("budget", [{"tokens_left": 2}, {"logit_rows": 0}, {"draft_rows": 0}], ids=str)
def test_no_more_are_scored_than_each_budget_has(budget, count):
    """One token is the sequence's own, and one is kept for each that was chosen."""
    ((name, none),) = budget.items()
    assert draft(**{name: none + count}).drafts == tuple(PREDICTED[:count])


def test_blocks_that_others_may_need_are_left_to_them():
    assert draft(num_blocks=3, num_running=1).drafts
    assert draft(num_blocks=3, num_running=2) == NO_DRAFTS, "as many are free as sequences run"


def test_who_has_no_block_for_them_has_no_drafts():
    assert draft(num_blocks=1, num_running=0) == NO_DRAFTS


def test_a_chunk_of_a_prompt_and_a_promised_token_have_no_drafts():
    assert draft(prompt_left=3).drafts
    assert draft(prompt_left=3, tokens_left=2) == NO_DRAFTS
    assert draft(num_promised_tokens=1) == NO_DRAFTS


def test_a_model_beside_is_asked_for_what_the_rows_of_the_next_pass_can_score():
    wanted = [draft(model=True, output_token_ids=[4], draft_rows=rows).num_wanted for rows in (0, 2)]
    assert wanted == [0, 2]
