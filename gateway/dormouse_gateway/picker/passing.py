"""One response on its way from a worker's HTTP port through Envoy: what is learnt of it as it passes by."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from dormouse_api.foreign import ext_proc_pb2 as pb
from dormouse_gateway.canary.canaries import Sighting
from dormouse_gateway.hold.announce import trailers
from dormouse_gateway.hold.wait import HoldTicket
from dormouse_gateway.picker import answers
from dormouse_gateway.picker.asked import code_of, verdict_of
from dormouse_gateway.picker.exchange import Exchange
from dormouse_gateway.picker.head import Head, served_by
from dormouse_gateway.picker.toll import Toll
from dormouse_gateway.router import Lease
from dormouse_gateway.routing.breaker import Verdict

_OK = 200
_EVENTS = "text/event-stream"
_LENGTH = "content-length"  # of a response that its worker has finished before it sends it


@dataclass(slots=True)
class Passing:
    """A response, from when its request was sent until its end or Envoy's."""

    head: Head
    lease: Lease
    toll: Toll
    wait: HoldTicket
    sighting: Sighting | None
    _status: int | None = None  # None = no response has come
    _is_over: bool = False

    @property
    def outcome(self) -> grpc.StatusCode:
        """Return how the request ended. A stream that breaks is its client's or its worker's end: nobody knows."""
        if self._status is None:
            return grpc.StatusCode.CANCELLED
        is_seen = self._is_over or self.head.response_mode == pb.ProcessingMode.NONE
        return code_of(self._status) if is_seen or self._status != _OK else grpc.StatusCode.CANCELLED

    async def follow(self, exchange: Exchange) -> None:
        """Let the response pass, and learn from it how its worker does, until nothing more is to be learnt of it.

        When the conversation ends before the response does, Envoy passes on the rest by itself.
        """
        while not self._is_over and (message := await exchange.read()) is not None:
            kind = message.WhichOneof("request")
            if kind == "response_headers":
                self._status = _status(message.response_headers)
                self._judge(served_by(message))
                self._begin(message.response_headers)
                await exchange.say(answers.onward((*trailers(self.wait), *self.toll.caller.headers)))
            elif kind == "response_body":
                self.lease.advance()
                self._is_over = message.response_body.end_of_stream
                self.toll.pass_by(message.response_body.body)
                await exchange.say(answers.passed_on(self.head, message.response_body))
            elif kind == "response_trailers":
                self._is_over = True
                await exchange.say(answers.trailers_pass())

    def _judge(self, served: str) -> None:
        """Report how it went with whom: with another worker than was chosen, if the request went there instead.

        That one may refuse what was let in to another, which says nothing of it.
        """
        has_moved, verdict = self.lease.move(served), verdict_of(self._status or 0)
        self.lease.report(Verdict.NOTHING if has_moved and verdict is Verdict.REFUSED else verdict)

    def _begin(self, said: pb.HttpHeaders) -> None:
        """Take the headers. Those of events come with the first token; of other responses nobody knows when it came."""
        self.toll.is_good = self._status == _OK
        self.lease.advance()
        self._is_over = said.end_of_stream or self._is_known(said)
        if self.sighting and self.toll.is_good and _value(said, "content-type").startswith(_EVENTS):
            self.sighting.note_first()

    def _is_known(self, said: pb.HttpHeaders) -> bool:
        """Return whether the headers tell all: the worker is done, its key does not pay, and Envoy keeps the body."""
        keeps_body = self.head.response_mode != pb.ProcessingMode.FULL_DUPLEX_STREAMED
        return keeps_body and not self.toll.is_counted and bool(_value(said, _LENGTH))


def _status(headers: pb.HttpHeaders) -> int:
    """Return a response's status, 0 if there is none."""
    text = _value(headers, ":status")
    return int(text) if text.isdecimal() and len(text) == len("200") else 0


def _value(headers: pb.HttpHeaders, name: str) -> str:
    told = next((each for each in headers.headers.headers if each.key == name), pb.HeaderValue())
    return told.raw_value.decode("latin-1") or told.value
