"""One request's output: text, ends, and what a slow caller gets."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.front.streams import MAX_TOKENS_PER_PIECE, OutputStream, TextRules, Times
from dormouse_worker.ipc import TokenLogprobs, TokenOutput


class Letters:
    """A decoder in which every token is the letter of that number."""

    def step(self, token_id):
        return chr(token_id)


def make_stream(clock=None, **rules):
    clock = clock or ManualClock()
    return OutputStream(TextRules(Letters(), **rules), Times(arrival_s=clock()), clock=clock)


def output(text, reason=None, **fields):
    return TokenOutput("1", [ord(letter) for letter in text], reason, **fields)


async def test_everything_that_waits_comes_as_one_piece():
    stream = make_stream()
    for letter in "abc":
        stream.push(output(letter))
    piece = await stream.take()
    assert (piece.text, piece.token_ids, piece.completion_tokens, piece.finish_reason) == ("abc", [97, 98, 99], 3, None)


async def test_a_piece_is_bounded_so_that_its_message_is():
    stream = make_stream()
    for _ in range(MAX_TOKENS_PER_PIECE + 5):
        stream.push(output("a"))
    stream.push(output("b", "length"))
    first, second = await stream.take(), await stream.take()
    assert (len(first.token_ids), first.finish_reason) == (MAX_TOKENS_PER_PIECE, None)
    assert (len(second.token_ids), second.finish_reason) == (6, "length")
    assert second.completion_tokens == MAX_TOKENS_PER_PIECE + 6


async def test_after_the_end_nothing_is_taken_in():
    stream = make_stream()
    stream.push(output("a", "length"))
    stream.push(output("b"))
    stream.fail(CallError(grpc.StatusCode.INTERNAL, "late"))
    assert (await stream.take()).text == "a"
    assert stream.num_tokens == 1


async def test_an_error_comes_after_what_was_pushed_before():
    stream = make_stream()
    stream.push(output("a"))
    stream.fail(CallError(grpc.StatusCode.UNAVAILABLE, "gone"))
    assert (await stream.take()).text == "a"
    for _ in range(2):
        with pytest.raises(CallError, match="gone"):
            await stream.take()


async def test_held_back_text_comes_with_the_end():
    stream = make_stream(stops=("ab",))
    stream.push(output("xa"))
    assert (await stream.take()).text == "x"
    stream.push(output("", "abort"))
    last = await stream.take()
    assert (last.text, last.finish_reason) == ("a", "abort")


async def test_tokens_after_a_stop_string_do_not_count():
    stream = make_stream(stops=("b",))
    stream.push(output("abcd", logprobs=[TokenLogprobs(-1.0, [], [])] * 4))
    piece = await stream.take()
    assert (piece.text, piece.token_ids, piece.matched_stop, piece.completion_tokens) == ("a", [97, 98], "b", 2)
    assert len(piece.logprobs) == 2


async def test_stop_strings_do_not_count_before_min_tokens():
    stream = make_stream(stops=("a",), min_tokens=2)
    stream.push(output("aaxay"))
    assert (await stream.take()).text == "aax"


async def test_the_token_that_ended_the_text_is_part_of_it_only_on_request():
    for include, text in ((False, "a"), (True, "a!")):
        stream = make_stream(include_stop=include)
        stream.push(output("a!", "stop"))
        assert (await stream.take()).text == text


def test_times_are_those_of_the_first_and_the_last_token():
    clock = ManualClock()
    stream = make_stream(clock)
    clock.now_s = 2.0
    stream.push(output("a", queue_seconds=0.5, prefill_seconds=1.5))
    clock.now_s = 5.0
    stream.push(output("b"))
    stream.push(output("", "abort"))
    assert stream.times == Times(0.0, first_token_s=2.0, last_token_s=5.0, queue_s=0.5, prefill_s=1.5)
