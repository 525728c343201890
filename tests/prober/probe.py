"""The prober: sends what the plan says when the plan says it, whatever became of the requests before. Owns the records.

It is open: a slow answer delays no other request, so that an outage is felt by everyone who would have called in it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from grpc import aio

from dormouse_api.names import METADATA_START
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from tests.prober.cases import Ask, Case
from tests.prober.loads import Load
from tests.prober.verdicts import Finding, Piece, judge

CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
    ("grpc.enable_http_proxy", 0),  # the way is a bridge on this machine
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(slots=True)
class Record:
    """What became of one request. Times are seconds from the beginning of the run."""

    scenario: str
    model: str
    ask: Ask
    due_s: float
    sent_s: float
    first_s: float | None = None  # the first token
    last_s: float = 0.0  # the end, whichever
    stall_s: float = 0.0  # the longest time between two messages, from the first token on
    code: str = ""  # of the last try
    message: str = ""  # of the status, where it is not OK
    start: str = ""  # dormouse-start: warm, level1, level2 or cold
    door: str = ""  # which connection the first try took
    tries: int = 0
    first_code: str = ""  # of the first try
    is_migrated: bool = False
    finding: Finding | None = None  # None while it runs

    @property
    def late_s(self) -> float:
        """Return by how much it was sent too late: the prober's own failing."""
        return self.sent_s - self.due_s


class Door:
    """One connection to a gateway, or to the address in front of all of them."""

    def __init__(self, name: str, address: str) -> None:
        """Take what records call it."""
        self.name = name
        self._channel = aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.stub: Any = rpc.InferenceStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


@dataclass(frozen=True, slots=True)
class Manner:
    """How requests are made."""

    doors: Sequence[Door]  # taken in turn
    timeout_s: float = 180.0
    tries: int = 1  # 2: a client that tries once more, through another door
    is_patient: bool = True  # waits for a connection that is being made anew, as gRPC's wait_for_ready does


@dataclass(slots=True)
class Prober:
    """Sends loads and keeps what came of them."""

    cases: Sequence[Case]
    clock: Callable[[], float] = time.monotonic
    records: list[Record] = field(default_factory=list)
    _turn: Any = field(default_factory=count)
    _began: asyncio.Event = field(default_factory=asyncio.Event)  # an answer did
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _begin_s: float = 0.0

    def __post_init__(self) -> None:
        self._begin_s = self.clock()

    def __repr__(self) -> str:
        return f"Prober({len(self.records)} sent, {len(self._running)} running)"

    @property
    def now_s(self) -> float:
        """Return the seconds since the run began."""
        return self.clock() - self._begin_s

    async def send(  # what, where to, how, by which dice, until when
        self,
        load: Load,
        *,
        scenario: str,
        model: str,
        manner: Manner,
        rng: random.Random,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Send the load to its end, or until `stop`; the answers may still be on their way then."""
        begin_s, stop = self.now_s, stop or asyncio.Event()
        for ask in load.asks(self._choices(load), rng):
            if await _is_set_within(stop, begin_s + ask.due_s - self.now_s):
                return
            record = Record(scenario, model, ask, begin_s + ask.due_s, self.now_s)
            self.records.append(record)
            task = asyncio.create_task(self._ask(record, manner))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def settle(self) -> None:
        """Wait until every request has ended; each has a deadline."""
        while self._running:
            await asyncio.wait(self._running)

    def of(self, scenario: str) -> list[Record]:
        """Return the records of a scenario."""
        return [record for record in self.records if record.scenario == scenario]

    def running(self, scenario: str) -> list[Record]:
        """Return those of a scenario that have a token and no end yet."""
        return [record for record in self.of(scenario) if record.first_s is not None and record.finding is None]

    def _choices(self, load: Load) -> list[int]:
        """Return the cases that the load may ask."""
        least = load.tokens[1] if load.is_long else 0
        return [index for index, case in enumerate(self.cases) if len(case.reference) >= least]

    async def until_running(self, scenario: str, num: int) -> list[Record]:
        """Wait until so many of a scenario run at once, and return them."""
        while len(running := self.running(scenario)) < num:
            self._began.clear()
            await self._began.wait()
        return running

    async def _ask(self, record: Record, manner: Manner) -> None:
        """Make a request, again if it may be tried again, and judge what came."""
        case, turn = self.cases[record.ask.case], next(self._turn)
        request = case.question.request(record.model, record.ask.max_tokens, record.ask.stream_interval)
        pieces: list[Piece] = []
        for index in range(manner.tries):
            door = manner.doors[(turn + index) % len(manner.doors)]
            pieces = await self._try(record, door, request, manner)
            record.door = record.door or door.name
            record.tries += 1
            record.first_code = record.first_code or record.code
            if record.code == "OK":
                break
        record.last_s = self.now_s
        record.is_migrated = any(piece.is_migrated for piece in pieces)
        record.finding = judge(case.expected(record.ask.max_tokens), pieces, record.code)

    async def _try(self, record: Record, door: Door, request: pb.GenerateRequest, manner: Manner) -> list[Piece]:
        """Make one call; note its times, its status and what the gateway says of its start."""
        pieces: list[Piece] = []
        call = door.stub.Generate(request, timeout=manner.timeout_s, wait_for_ready=manner.is_patient)
        last_s = None
        try:
            async for response in call:
                now_s = self.now_s
                if record.first_s is None:
                    record.first_s = now_s
                    self._began.set()
                record.stall_s = max(record.stall_s, now_s - last_s if last_s is not None else 0.0)
                last_s = now_s
                pieces.append(_piece(response))
            record.code, trailers = "OK", await call.trailing_metadata()
        except aio.AioRpcError as error:
            record.code, record.message, trailers = error.code().name, error.details() or "", error.trailing_metadata()
        if last_s is not None:
            record.stall_s = max(record.stall_s, self.now_s - last_s)
        record.start = str(dict(trailers or ()).get(METADATA_START, ""))
        return pieces


def _piece(response: pb.GenerateResponse) -> Piece:
    return Piece(
        tokens=tuple(response.token_ids),
        count=response.completion_tokens,
        is_last=response.finish_reason != pb.FINISH_REASON_UNSPECIFIED,
        is_migrated=response.migrated,
    )


async def _is_set_within(stop: asyncio.Event, timeout_s: float) -> bool:
    """Wait for so long, or until the event is set; tell whether it is."""
    if stop.is_set() or timeout_s <= 0:
        await asyncio.sleep(0)  # whoever answers gets a turn though the plan is behind
        return stop.is_set()
    try:
        async with asyncio.timeout(timeout_s):
            return await stop.wait()
    except TimeoutError:
        return False
