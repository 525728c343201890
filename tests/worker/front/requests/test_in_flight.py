"""The table of requests in flight, by itself: what is counted, and what the engine is told at once."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_worker.common.ipc import AbortRequests, AddRequest, Sampling, StepOutputs, TokenOutput
from dormouse_worker.front.engine.status_board import Changes
from dormouse_worker.front.requests.in_flight import Order, RequestTable
from dormouse_worker.front.requests.streams import OutputStream, Times
from dormouse_worker.front.text.assembly import TextAssembly, TextRules

SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=1, max_tokens=9)


class Letters:
    """A decoder in which every token is the letter of that number."""

    def step(self, token_id):
        return chr(token_id)

    def flush(self):
        return ""


class Ends:
    """Records how requests ended."""

    def __init__(self):
        self.reasons = []

    def on_tokens(self, stream, num_tokens, previous_token_s):
        pass

    def on_end(self, stream, reason):  # noqa: ARG002  the shape of RequestEvents
        self.reasons.append(reason)


class Table:
    """A table and everything around it."""

    def __init__(self, max_waiting=8):
        self.sent, self.ends = [], Ends()
        self.table = RequestTable(self.sent.append, self.ends, max_waiting=max_waiting, changes=Changes())

    def open(self, count=1):
        """Return the streams and keys of one call."""
        streams = [
            OutputStream(TextAssembly(TextRules(Letters(), ("z",))), Times(0.0), clock=float) for _ in range(count)
        ]
        return streams, self.table.open(Order([1, 2]), [(stream, SAMPLING) for stream in streams])

    def step(self, *outputs, **failed):
        self.table.route(StepOutputs(list(outputs), 0, 0, 0.0, failed={key[1:]: why for key, why in failed.items()}))
        self.table.check_integrity()

    @property
    def aborted(self):
        return [key for message in self.sent if isinstance(message, AbortRequests) for key in message.request_ids]


def test_one_that_fails_takes_its_siblings_along_at_once_and_nobody_else():
    house = Table()
    streams, _ = house.open(3)
    others, _ = house.open(2)
    house.step(TokenOutput("1", [97]), _2="out of luck")
    assert house.aborted == ["1", "3"]
    assert all(stream.error.code is grpc.StatusCode.INTERNAL for stream in streams)
    assert not any(stream.is_finished for stream in others)
    assert (len(house.table), house.ends.reasons) == (2, ["error"] * 3)
    assert streams[0].pop().text == "a", "what came before the error is not lost"


def test_an_output_that_can_not_become_text_costs_its_own_call_only():
    around = Table()
    (bad, sibling), _ = around.open(2)
    (good,), _ = around.open()
    around.step(TokenOutput("1", [-1]), TokenOutput("3", [97]))  # no letter has the number -1
    assert (bad.error.code, sibling.error.code) == (grpc.StatusCode.INTERNAL, grpc.StatusCode.INTERNAL)
    assert (around.aborted, around.ends.reasons) == (["1", "2"], ["error", "error"])
    assert (good.pop().text, len(around.table)) == ("a", 1)


def test_siblings_that_have_ended_keep_their_end():
    house = Table()
    streams, _ = house.open(2)
    house.step(TokenOutput("1", [97], "length"))
    house.step(_2="out of luck")
    assert (streams[0].error, streams[0].finish_reason, house.aborted) == (None, "length", [])


def test_a_request_waits_until_the_engine_speaks_of_it_even_without_a_token():
    house = Table()
    house.open(2)
    assert (house.table.num_waiting, house.table.num_running) == (2, 0)
    house.step(TokenOutput("1", [], prompt_logprobs=[]))
    assert (house.table.num_waiting, house.table.num_running) == (1, 1)
    house.step(TokenOutput("2", [97], "stop"))
    assert (house.table.num_waiting, house.table.num_running) == (0, 1)


def test_abandoning_frees_what_runs_and_only_once():
    house = Table()
    _, keys = house.open(3)
    house.step(TokenOutput("2", [97], "length"))
    for _ in range(2):
        house.table.abandon(keys)
        house.table.check_integrity()
    assert (house.aborted, len(house.table)) == (["1", "3"], 0)
    assert house.ends.reasons == ["length", "abort", "abort"]


def test_a_stop_string_frees_its_sequence():
    house = Table()
    (stream,), _ = house.open()
    house.step(TokenOutput("1", [ord("z")]))
    assert (stream.finish_reason, house.aborted) == ("stop", ["1"])


def test_ending_with_an_error_frees_and_tells():
    house = Table()
    (stream,), keys = house.open()
    house.table.end(keys, CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "late"))
    assert (stream.error.message, house.aborted) == ("late", ["1"])
    house.step(TokenOutput("1", [97]))
    assert stream.pop() is None


def test_what_a_call_orders_stands_in_every_request():
    house = Table()
    (stream,), _ = house.open()
    house.table.open(Order([1], [2, 3], -4, "salt"), [(stream, SAMPLING)])
    assert house.sent[-1] == AddRequest("2", [1], SAMPLING, [2, 3], -4, "salt")


@pytest.mark.parametrize(("waiting", "more", "code"), [(2, 3, "RESOURCE_EXHAUSTED"), (0, 5, "INVALID_ARGUMENT")])
def test_room_is_counted_in_choices(waiting, more, code):
    house = Table(max_waiting=4)
    house.open(waiting)
    house.table.check_room(4 - waiting)
    with pytest.raises(CallError) as caught:
        house.table.check_room(more)
    assert (caught.value.code.name, str(more) in caught.value.message) == (code, True)


def test_what_is_being_prepared_takes_room_in_the_queue_until_it_is_ready_or_has_failed():
    around = Table(max_waiting=3)
    with around.table.preparing(2):
        around.table.check_room(1)
        with pytest.raises(CallError, match="2 requests wait already") as caught:
            around.table.check_room(2)
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(LookupError), around.table.preparing(3):
        raise LookupError
    around.table.check_room(3)
