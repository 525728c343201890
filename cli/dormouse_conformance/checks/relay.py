"""Many calls over one stream."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from dormouse_api.capabilities import Capability
from dormouse_api.names import METADATA_RELAY
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import relay_pb2 as wire
from dormouse_conformance.findings import Missed, require, require_equal
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.streams import Answer
from dormouse_conformance.subject import Subject, refusing


@dataclass(slots=True)
class Carrier:
    """One stream of Relay, and what came over it, by call."""

    call: Any
    outbox: queue.SimpleQueue[wire.CarryRequest | None]
    timeout_s: float
    messages: dict[int, list[pb.GenerateResponse]] = field(default_factory=dict)
    ends: dict[int, wire.CarriedStatus] = field(default_factory=dict)

    def begin(self, *calls: tuple[int, pb.GenerateRequest]) -> None:
        """Begin calls, together."""
        carried = [
            wire.CarriedCall(call=number, request=request.SerializeToString(), timeout_s=self.timeout_s)
            for number, request in calls
        ]
        self.outbox.put(wire.CarryRequest(begin=carried))

    def cancel(self, number: int) -> None:
        """Leave a call."""
        self.outbox.put(wire.CarryRequest(cancel=[number]))

    def read(self, *, until: set[int], count: int = 0) -> None:
        """Read until these calls have ended, or the first of them has so many messages. Raises Refused, Missed."""
        with refusing("Relay/Carry"):
            for response in self.call:
                for part in response.parts:
                    self._take(part)
                if until <= self.ends.keys() or (count and len(self.messages.get(min(until), ())) >= count):
                    return
        raise Missed(f"the end of the calls {sorted(until)}", f"the stream's end after {sorted(self.ends)}")

    def _take(self, part: wire.CarriedPart) -> None:
        if part.WhichOneof("what") == "end":
            self.ends[part.call] = part.end
        else:
            self.messages.setdefault(part.call, []).append(pb.GenerateResponse.FromString(part.message))

    def answer(self, number: int) -> Answer:
        """Return what was told of a call."""
        return Answer(tuple(self.messages.get(number, ())))


@contextmanager
def _carrying(worker: Subject) -> Iterator[Carrier]:
    worker.ready()
    outbox: queue.SimpleQueue[wire.CarryRequest | None] = queue.SimpleQueue()
    timeout_s = worker.target.patience_s
    call = worker.relay.Carry(iter(outbox.get, None), timeout=timeout_s, metadata=worker.to_gateway)
    try:
        yield Carrier(call, outbox, timeout_s)
    finally:
        outbox.put(None)
        call.cancel()


def _hello(worker: Subject) -> None:
    with _carrying(worker) as carrier, refusing("Relay/Carry"):
        told = dict(carrier.call.initial_metadata())
    require(METADATA_RELAY in told, f"{METADATA_RELAY} in the initial metadata", told)


def _same(worker: Subject) -> None:
    worker.ready()
    request = worker.request(temperature=1.0, seed=8)
    alone = worker.generate(request)
    with _carrying(worker) as carrier:
        carrier.begin((1, request))
        carrier.read(until={1})
    require_equal("the call's status", 0, carrier.ends[1].code)
    require_equal("the tokens of the call by itself", alone.tokens(), carrier.answer(1).tokens())


def _apart(worker: Subject) -> None:
    worker.ready()
    requests = {number: worker.request(temperature=1.0, seed=number) for number in (1, 2)}
    expected = {number: worker.generate(request).tokens() for number, request in requests.items()}
    with _carrying(worker) as carrier:
        carrier.begin(*requests.items())
        carrier.read(until={1, 2})
    require_equal("the tokens by call", expected, {number: carrier.answer(number).tokens() for number in requests})


def _status(worker: Subject) -> None:
    with _carrying(worker) as carrier:
        carrier.begin((1, worker.request(temperature=-1.0)))
        carrier.read(until={1})
    expected: Any = grpc.StatusCode.INVALID_ARGUMENT.value[0]
    require_equal("the status of a call with temperature -1", expected, carrier.ends[1].code)


def _cancel(worker: Subject) -> None:
    with _carrying(worker) as carrier:
        carrier.begin((1, worker.long_request()))
        carrier.read(until={1}, count=1)
        carrier.cancel(1)
        worker.until_idle()
        carrier.begin((2, worker.request(max_tokens=1)))
        carrier.read(until={2})
    require(1 not in carrier.ends, "no status of a call that was cancelled", carrier.ends.get(1))


_CLAIM = Capability.RELAY
SECTION = Section(
    "relay",
    "Gateways carry many calls over one stream, so that the tokens of a step are one message.",
    (
        Rule(
            "hello",
            f"A worker that serves it says `{METADATA_RELAY}` in its initial metadata, at once.",
            _hello,
            _CLAIM,
        ),
        Rule("same", "A carried call has the messages that it has by itself, and then a status.", _same, _CLAIM),
        Rule("apart", "Each call has its own messages, in order.", _apart, _CLAIM),
        Rule(
            "status", "A call that is refused has the status that it has by itself; the others go on.", _status, _CLAIM
        ),
        Rule("cancel", "A cancelled call is freed, and its status is not told.", _cancel, _CLAIM),
    ),
)
