"""From messages to events: what a client sees while there is nothing to say, and what an answer is made of."""

import asyncio
import json

import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.answers import Answer, as_events, in_one_piece
from dormouse_gateway.openai.choices import Choices
from dormouse_gateway.openai.shapes import COMPLETION, Head
from dormouse_gateway.openai.wish import Wish

WAITING = b": waiting\n\n"


class Script:
    """A source of prepared messages; None is a pause of one comment."""

    def __init__(self, *steps, **said):
        self.steps = list(steps)
        self.said = {name.replace("_", "-"): value for name, value in said.items()}

    async def read(self):
        if not self.steps:
            return None
        step = self.steps.pop(0)
        if step is None:
            await asyncio.Event().wait()
        if isinstance(step, Exception):
            raise step
        return step.SerializeToString()


def text(said, finish=pb.FINISH_REASON_UNSPECIFIED, **fields):
    return pb.GenerateResponse(text=said, finish_reason=finish, **fields)


def answer(*, is_stream=True):
    return Answer(Wish((pb.GenerateRequest(),), is_stream), texts=None)


FORM = Choices(Head(COMPLETION, "id", "tiny", 0))


async def events(source, first=None):
    return [event async for event in as_events(source, answer(), FORM, first, waiting_s=0.001)]


def said(event):
    return json.loads(event.removeprefix(b"data: "))["choices"][0]["text"]


async def test_a_client_that_waits_gets_comments_until_the_first_word_and_between_words():
    got = await events(Script(None, None, text("a"), None, text("b", pb.FINISH_REASON_STOP)))
    assert got[:3] == [WAITING] * 3
    assert said(got[3]) == "a"
    assert got[4] == WAITING
    assert said(got[5]) == "b"
    assert got[6:] == [b"data: [DONE]\n\n"]


async def test_with_the_first_message_at_hand_there_is_no_comment():
    got = await events(Script(), first=text("a", pb.FINISH_REASON_STOP).SerializeToString())
    assert (said(got[0]), len(got)) == ("a", 2)


async def test_a_part_of_a_character_makes_no_event():
    got = await events(Script(text(""), text("é", pb.FINISH_REASON_STOP)))
    assert (said(got[1]), len(got)) == ("é", 3)


async def test_what_the_core_says_at_the_end_is_a_comment_before_the_last_event():
    source = Script(text("a", pb.FINISH_REASON_STOP), dormouse_start="cold", other="no")
    assert (await events(source))[-1] == b": dormouse-start: cold\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (CallError(grpc.StatusCode.UNAVAILABLE, "no worker woke"), "no worker woke"),
        (text("", pb.FINISH_REASON_ABORT), "before it was complete"),
    ],
)
async def test_what_ends_a_stream_early_is_an_event_and_nothing_follows(step, words):
    got = await events(Script(text("a"), step))
    assert words in json.loads(got[-1].removeprefix(b"data: "))["error"]["message"]


@pytest.mark.parametrize("steps", [(), (text("a"),), (text("a", pb.FINISH_REASON_ABORT),)])
async def test_an_answer_without_an_end_is_an_error_and_no_shorter_answer(steps):
    with pytest.raises(CallError, match="before it was complete"):
        await in_one_piece(Script(*steps), answer(is_stream=False), FORM)


async def test_choices_come_in_their_order_however_the_messages_came():
    steps = [text(word, pb.FINISH_REASON_LENGTH, choice_index=index) for index, word in ((1, "b"), (0, "a"))]
    whole = await in_one_piece(Script(*steps), answer(is_stream=False), FORM)
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(0, "a"), (1, "b")]
