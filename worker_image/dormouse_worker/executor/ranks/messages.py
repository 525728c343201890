"""What a group's leader and a rank process say to each other: msgspec structs in the frames of `ipc`, never pickle.

    rank → leader    Hello, then an Answer for each order, and a Beat every second whatever it does
    leader → rank    Welcome or Refusal, then Calls and Steps, carried out in their order

What a step sends does not grow with the sequences: `engine.rank_view` sends what changed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dormouse_worker.common.frames import frame
from dormouse_worker.engine.batch import Batch, SampledToken

NOTHING = msgspec.Raw(b"\xc0")  # MessagePack's nil


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Who comes. All of it but the pod must be what the leader expects."""

    rank: int
    group_id: str
    settings_digest: str
    version: str
    model_digest: str
    pod: str = ""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The rank belongs to the group; its variables must stand before torch is imported."""

    environment: dict[str, str]


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The rank does not belong here; the leader hangs up."""

    message: str


class Call(msgspec.Struct, frozen=True, tag=True):
    """One method of the worker, by name."""

    call_id: int
    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class Step(msgspec.Struct, frozen=True, tag=True):
    """One batch, and the tokens that the batch before gave: no rank has noted them yet."""

    call_id: int
    batch: Batch
    sampled: list[SampledToken] = []


class Answer(msgspec.Struct, frozen=True, tag=True):
    """What became of an order: a value, or an error."""

    call_id: int
    value: msgspec.Raw = NOTHING  # MessagePack; what type it has follows from the method
    error: str = ""  # the class's name; "" = none
    message: str = ""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A sign of life."""


LeaderMessage = Welcome | Refusal | Call | Step
RankMessage = Hello | Answer | Beat

_encoder = msgspec.msgpack.Encoder()
_leader_decoder: msgspec.msgpack.Decoder[LeaderMessage] = msgspec.msgpack.Decoder(LeaderMessage)
_rank_decoder: msgspec.msgpack.Decoder[RankMessage] = msgspec.msgpack.Decoder(RankMessage)


def encode(message: LeaderMessage | RankMessage) -> bytes:
    """Return a frame with this message."""
    return frame(_encoder.encode(message))


def encode_value(value: Any) -> msgspec.Raw:
    """Return a value as an answer carries it. Raises TypeError for what MessagePack cannot say."""
    return msgspec.Raw(_encoder.encode(value))


def decode_leader(payload: bytes) -> LeaderMessage:
    """Decode what a leader sent. Raises msgspec.DecodeError on anything else."""
    return _leader_decoder.decode(payload)


def decode_rank(payload: bytes) -> RankMessage:
    """Decode what a rank sent. Raises msgspec.DecodeError on anything else."""
    return _rank_decoder.decode(payload)
