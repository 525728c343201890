"""What a caller predicts of the answer: it reaches the engine where drafts are made, and is counted."""

from __future__ import annotations

import pytest

from dormouse_worker.common.ipc import AddRequest, StepOutputs, TokenOutput

DRAFTS = {"speculation_method": "ngram"}


@pytest.fixture
async def drafting(open_house):
    """A worker that makes drafts."""
    async with open_house(engine=DRAFTS) as house:
        yield house


def predicted(house):
    """Return what the engine was told of each request."""
    return [message.prediction_token_ids for message in house.engine.engine.received if isinstance(message, AddRequest)]


async def test_each_choice_is_predicted_as_far_as_it_may_go(drafting):
    ids = list((await drafting.tokenize("abcdef")).token_ids)
    await drafting.collect("x", n=2, max_tokens=3, prediction="abcdef")
    await drafting.collect("x", max_tokens=9, prediction="abcdef")
    assert predicted(drafting) == [ids[:3], ids[:3], ids]


async def test_without_drafts_nobody_looks_at_it(house):
    messages = await house.collect("x", prediction="abc")
    assert predicted(house) == [[]]
    assert messages[-1].usage.accepted_prediction_tokens == 0


async def test_usage_sums_over_choices_and_outputs_what_was_right_and_wrong(drafting):
    drafting.engine.is_paused = True
    stream = drafting.generate("x", n=2, max_tokens=9, prediction="abc")
    await drafting.engine.until_received(lambda m: isinstance(m, AddRequest) and m.request_id == "2")

    def say(key, accepted, rejected, reason=None):
        counts = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
        counts |= {"draft_tokens": accepted + rejected + 1, "accepted_draft_tokens": accepted}
        output = TokenOutput(key, [1], reason, **counts)
        drafting.engine.say(StepOutputs([output], running=2, waiting=0, kv_cache_usage=0.0))

    say("1", 2, 0)
    say("1", 3, 1, "length")
    say("2", 0, 4, "length")
    usage = [message async for message in stream][-1].usage
    assert (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) == (5, 5)
    assert (usage.draft_tokens, usage.accepted_draft_tokens) == (13, 5)
