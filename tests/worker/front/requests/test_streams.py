"""One request's output: text, ends, and what a slow caller gets."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dormouse_api.limits import MAX_MESSAGE_BYTES, MAX_STREAM_INTERVAL
from dormouse_api.status import CallError
from dormouse_worker.common.ipc import TokenLogprobs, TokenOutput
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.front.requests.choices import Choices
from dormouse_worker.front.requests.streams import MAX_CHARS_PER_PIECE, MAX_POSITIONS_PER_PIECE, OutputStream, Times
from dormouse_worker.front.requests.wake_event import WakeEvent
from dormouse_worker.front.requests.wire import to_response
from dormouse_worker.front.text.assembly import Resumed, TextAssembly, TextRules


class Letters:
    """A decoder in which every token is the letter of that number."""

    def step(self, token_id):
        return chr(token_id)

    def flush(self):
        return ""


class Unfinished(Letters):
    """A decoder in which a byte always waits."""

    def flush(self):
        return "?"


def make_stream(clock=None, on_due=lambda: None, interval=1, decoder=Letters, **rules):
    clock = clock or ManualClock()
    assembly = TextAssembly(TextRules(decoder(), **rules))
    return OutputStream(assembly, Times(arrival_s=clock()), clock=clock, on_due=on_due, interval=interval)


def output(text, reason=None, **fields):
    return TokenOutput("1", [ord(letter) for letter in text], reason, **fields)


def test_everything_that_waits_comes_as_one_piece():
    stream = make_stream()
    for letter in "abc":
        stream.push(output(letter))
    piece = stream.pop()
    assert (piece.text, piece.token_ids, piece.completion_tokens, piece.finish_reason) == ("abc", [97, 98, 99], 3, None)


def test_with_an_interval_the_first_token_comes_at_once_and_the_others_in_pieces_of_so_many():
    wake = asyncio.Event()
    stream = make_stream(on_due=wake.set, interval=3)
    taken = []
    for letter in "abcdefghi":
        stream.push(output(letter))
        assert wake.is_set() == stream.is_due, "a reader is woken for what it can take, and for nothing else"
        piece = stream.pop()
        taken.append(piece.text if piece is not None else "")
        wake.clear()
    assert taken == ["a", "", "", "bcd", "", "", "efg", "", ""]
    stream.push(output("j", "length"))
    last = stream.pop()
    assert (last.text, last.token_ids, last.completion_tokens) == ("hij", [104, 105, 106], 10)
    assert (last.finish_reason, stream.pop()) == ("length", None)


def test_an_interval_is_as_long_as_a_piece_may_be():
    assert MAX_STREAM_INTERVAL <= MAX_POSITIONS_PER_PIECE
    stream = make_stream(interval=MAX_STREAM_INTERVAL)
    stream.push(output("a" * 2 * MAX_STREAM_INTERVAL))
    assert [len(stream.pop().token_ids) for _ in range(2)] == [MAX_STREAM_INTERVAL] * 2


@pytest.mark.parametrize("ends", ["stop string", "error"])
def test_what_waits_for_an_interval_comes_with_the_end_however_it_ends(ends):
    stream = make_stream(interval=100, stops=("!",))
    for letter in "abc":
        stream.push(output(letter))
    assert (stream.pop().text, stream.pop()) == ("abc", None)
    stream.push(output("d"))
    assert stream.pop() is None
    if ends == "error":
        stream.fail(CallError(grpc.StatusCode.UNAVAILABLE, "gone"))
    else:
        stream.push(output("!"))
    assert (stream.pop().text, stream.pop()) == ("d", None)


def test_what_is_no_token_waits_for_no_interval():
    stream = make_stream(interval=100)
    stream.begin_with(Resumed("", "known", None, None))
    assert stream.pop().text == "known"
    stream.push(TokenOutput("1", [], prompt_logprobs=[TokenLogprobs(-1.0, [], [])]))
    assert len(stream.pop().prompt_logprobs) == 1
    stream.push(output("a"))
    assert stream.pop().text == "a"


def test_a_push_tells_how_many_tokens_count():
    stream = make_stream(stops=("b",))
    assert [stream.push(output(text)) for text in ("aa", "abcd", "e")] == [2, 2, 0]


def test_a_piece_is_bounded_so_that_its_message_is():
    stream = make_stream()
    for _ in range(MAX_POSITIONS_PER_PIECE + 5):
        stream.push(output("a"))
    stream.push(output("b", "length"))
    first, second = stream.pop(), stream.pop()
    assert (len(first.token_ids), first.finish_reason) == (MAX_POSITIONS_PER_PIECE, None)
    assert (len(second.token_ids), second.finish_reason) == (6, "length")
    assert second.completion_tokens == MAX_POSITIONS_PER_PIECE + 6


def test_after_the_end_nothing_is_taken_in():
    stream = make_stream()
    stream.push(output("a", "length"))
    stream.push(output("b"))
    stream.fail(CallError(grpc.StatusCode.INTERNAL, "late"))
    assert stream.pop().text == "a"
    assert (stream.pop(), stream.num_tokens, stream.error) == (None, 1, None)


def test_an_error_comes_after_what_was_pushed_before():
    streams = [make_stream() for _ in range(2)]
    choices = Choices(streams)
    streams[1].push(output("a"))
    streams[0].fail(CallError(grpc.StatusCode.UNAVAILABLE, "gone"))
    stream, piece = choices.pop()
    assert (stream is streams[1], piece.text) == (True, "a")
    for _ in range(2):
        with pytest.raises(CallError, match="gone"):
            choices.pop()


def test_choices_take_turns():
    streams = [make_stream() for _ in range(3)]
    choices = Choices(streams)
    for stream in streams:
        stream.push(output("a"))
    assert {streams.index(choices.pop()[0]) for _ in range(2)} == {0, 1}
    streams[0].push(output("b"))
    assert streams.index(choices.pop()[0]) == 2, "the one that has waited longest"
    assert choices.pop()[1].text == "b"
    assert choices.pop() is None


async def test_a_reader_who_waits_is_woken_by_any_stream_and_by_its_end():
    bell = WakeEvent()
    streams = [make_stream(on_due=bell.ring) for _ in range(2)]
    for happens in (
        lambda: streams[1].push(output("a")),
        lambda: streams[0].push(output("", "length")),
        lambda: streams[1].fail(CallError(grpc.StatusCode.UNAVAILABLE, "gone")),
    ):
        waiting = asyncio.create_task(bell.heard())
        await asyncio.sleep(0)
        assert not waiting.done()
        happens()
        await waiting


def test_what_waits_is_joined_so_that_memory_does_not_grow_with_the_number_of_steps():
    stream = make_stream()
    for _ in range(10 * MAX_POSITIONS_PER_PIECE):
        stream.push(output("a"))
    assert len(stream._pieces) == 10


def test_many_tokens_at_once_and_long_texts_are_cut_too():
    stream = make_stream()
    stream.push(output("a" * (MAX_POSITIONS_PER_PIECE + 1)))
    assert [len(stream.pop().token_ids) for _ in range(2)] == [MAX_POSITIONS_PER_PIECE, 1]
    long = Resumed("", "x" * (MAX_CHARS_PER_PIECE + 1), None, None)
    stream.begin_with(long)
    assert [len(stream.pop().text) for _ in range(2)] == [MAX_CHARS_PER_PIECE, 1]


def test_the_largest_piece_is_below_the_message_limit():
    logprobs = TokenLogprobs(-1.5, [2**32 - 1] * 20, [-1.5] * 20)
    stream = make_stream()
    stream.begin_with(Resumed("", "\U0001f600" * (MAX_CHARS_PER_PIECE - 1), None, None))
    tokens = [0x10FFFF] * MAX_POSITIONS_PER_PIECE
    stream.push(TokenOutput("1", tokens, "length", [logprobs] * len(tokens)))
    stream.push(TokenOutput("1", tokens, "length", [logprobs] * len(tokens)))
    sizes = []
    while (piece := stream.pop()) is not None:
        sizes.append(to_response(piece).ByteSize())
    assert max(sizes) < MAX_MESSAGE_BYTES


def test_prompt_logprobs_come_in_bounded_pieces_and_in_order():
    parts = [TokenLogprobs(-float(i), [], []) for i in range(2 * MAX_POSITIONS_PER_PIECE + 3)]
    stream = make_stream()
    stream.push(TokenOutput("1", [], prompt_logprobs=parts[:-1]))
    stream.push(TokenOutput("1", [97], prompt_logprobs=parts[-1:]))
    pieces = [stream.pop() for _ in range(3)]
    assert [len(piece.prompt_logprobs) for piece in pieces] == [MAX_POSITIONS_PER_PIECE, MAX_POSITIONS_PER_PIECE, 3]
    assert [p for piece in pieces for p in piece.prompt_logprobs] == parts
    assert (pieces[-1].token_ids, stream.pop()) == ([97], None)


def test_held_back_text_comes_with_the_end():
    stream = make_stream(stops=("ab",))
    stream.push(output("xa"))
    assert stream.pop().text == "x"
    stream.push(output("", "abort"))
    last = stream.pop()
    assert (last.text, last.finish_reason) == ("a", "abort")


def test_tokens_after_a_stop_string_do_not_count():
    stream = make_stream(stops=("b",))
    stream.push(output("abcd", logprobs=[TokenLogprobs(-1.0, [], [])] * 4))
    piece = stream.pop()
    assert (piece.text, piece.token_ids, piece.matched_stop, piece.completion_tokens) == ("a", [97, 98], "b", 2)
    assert len(piece.logprobs) == 2


def test_stop_strings_do_not_count_before_min_tokens():
    stream = make_stream(stops=("a",), min_tokens=2)
    stream.push(output("aaxay"))
    assert stream.pop().text == "aax"


def test_the_token_that_ended_the_text_is_part_of_it_only_on_request():
    for include, text in ((False, "a"), (True, "a!")):
        stream = make_stream(include_stop=include)
        stream.push(output("a!", "stop"))
        assert stream.pop().text == text


def test_times_are_those_of_the_first_and_the_last_token():
    clock = ManualClock()
    stream = make_stream(clock)
    clock.now_s = 2.0
    stream.push(output("a", queue_seconds=0.5, prefill_seconds=1.5))
    clock.now_s = 5.0
    stream.push(output("b"))
    stream.push(output("", "abort"))
    assert stream.times == Times(0.0, first_token_s=2.0, last_token_s=5.0, queue_s=0.5, prefill_s=1.5)


@pytest.mark.parametrize(
    ("reason", "stops", "end"),
    [
        ("length", ("x",), ("a?", "length", None)),
        ("length", ("a?",), ("", "stop", "a?")),
        ("stop", (), ("?", "stop", None)),
        ("abort", ("a?",), ("a", "abort", None)),
    ],
)
def test_half_a_character_at_the_end_is_said_and_searched_unless_it_goes_on_elsewhere(reason, stops, end):
    stream = make_stream(decoder=Unfinished, stops=stops)
    stream.push(output("a", reason))
    last = stream.pop()
    assert (last.text, last.finish_reason, last.matched_stop) == end
