"""From bytes to messages. What protobuf would drop, cut off or refuse without a word is refused by field and limit.

A parser takes a field of the wrong wire type for an unknown one, cuts a number to 32 bits, and says of text that is not
UTF-8 only that the message is broken; gRPC then answers INTERNAL. So the fields are walked once before they are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from grpc import aio

from dormouse_api.image_wire import excess
from dormouse_api.names import INFERENCE_SERVICE
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.varint import read_varint
from dormouse_worker.front.refusing import refuse

MAX_FIELDS_WALKED = 10_000  # the rest is only parsed: who sends more is not served faster than others
MAX_DEPTH = 100  # protobuf's own limit; a level of JSON in tools and template arguments takes three
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIRE_NAMES = {VARINT: "varint", FIXED64: "64 bit", BYTES: "length-delimited", FIXED32: "32 bit"}
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
    FieldDescriptor.TYPE_FLOAT: FIXED32,
    FieldDescriptor.TYPE_STRING: BYTES,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_MESSAGE: BYTES,
}
_ABOVE_32_BITS = re.compile(rb"[\x80-\xff]{5}|[\x80-\xff]{4}[\x10-\x7f]")  # in packed varints
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands where a request should: gRPC's deserializers cannot refuse."""

    field: str
    value: str
    limit: str


class _Fault(Exception):
    """The walk met a field that is not as it must be."""

    def __init__(self, field: str, value: str, limit: str) -> None:
        super().__init__(field)
        self.found = Unreadable(field, value, limit)


class Reader(Generic[M]):
    """Reads messages of one type; given to gRPC as a deserializer."""

    def __init__(self, message_type: type[M]) -> None:
        self._type = message_type

    def __repr__(self) -> str:
        return f"Reader({self._type.DESCRIPTOR.full_name})"

    def __call__(self, raw: bytes) -> M | Unreadable:
        """Return the message, or what is wrong with it. Raises nothing."""
        if why := excess(self._type, raw):
            size, _, limit = why.partition("; the limit is ")
            return Unreadable("message", size, f"at most {limit} bytes")
        try:
            _Walk(raw).check(self._type.DESCRIPTOR, "", 0, len(raw))
            return self._type.FromString(raw)
        except _Fault as fault:
            return fault.found
        except DecodeError:
            return Unreadable("message", "broken", f"a {self._type.DESCRIPTOR.full_name}")


def readable(request: M | Unreadable) -> M:
    """Return the request. Raises CallError INVALID_ARGUMENT naming field and limit if it could not be read."""
    if isinstance(request, Unreadable):
        refuse(request.field, request.value, request.limit)
    return request


def add_inference(service: Any, server: aio.Server) -> None:
    """Serve `dormouse.v1.Inference`, as the generated function would, with our own reader of messages."""
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods: dict[str, tuple[Callable[..., Any], type[Message], type[Message]]] = {
        "Generate": (stream, pb.GenerateRequest, pb.GenerateResponse),
        "Embed": (unary, pb.EmbedRequest, pb.EmbedResponse),
        "Classify": (unary, pb.ClassifyRequest, pb.ClassifyResponse),
        "Score": (unary, pb.ScoreRequest, pb.ScoreResponse),
        "Decide": (unary, pb.DecideRequest, pb.DecideResponse),
        "Transcribe": (stream, pb.TranscribeRequest, pb.TranscribeResponse),
        "Tokenize": (unary, pb.TokenizeRequest, pb.TokenizeResponse),
        "Detokenize": (unary, pb.DetokenizeRequest, pb.DetokenizeResponse),
        "GetModel": (unary, pb.GetModelRequest, pb.GetModelResponse),
        "WatchLoad": (stream, pb.WatchLoadRequest, pb.Load),
    }
    handlers = {
        name: make(getattr(service, name), Reader(request), response.SerializeToString)
        for name, (make, request, response) in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE_SERVICE, handlers),))


class _Walk:
    """One pass over a message's bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._num_fields = 0

    def check(self, descriptor: Any, path: str, start: int, end: int, depth: int = 0) -> None:
        """Raise _Fault for the first bad field of the message in [start, end), which the Descriptor describes."""
        if depth > MAX_DEPTH:
            raise _Fault(path.rstrip("."), "nested too deep", f"at most {MAX_DEPTH} levels")
        for number, wire_type, begin, stop in self._fields(path, start, end):
            field = descriptor.fields_by_number.get(number)
            if field is not None:
                self._check_field(field, path, (wire_type, begin, stop), depth)

    def _check_field(self, field: FieldDescriptor, path: str, where: tuple[int, int, int], depth: int) -> None:
        wire_type, begin, stop = where
        name = path + field.name
        needed = _WIRE_TYPES.get(field.type, VARINT)
        is_packed = wire_type == BYTES and field.is_repeated and needed != BYTES
        if wire_type != needed and not is_packed:
            raise _Fault(name, f"of wire type {WIRE_NAMES[wire_type]}", WIRE_NAMES[needed])
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self.check(field.message_type, f"{name}.", begin, stop, depth + 1)
        elif field.type == FieldDescriptor.TYPE_STRING:
            self._check_text(name, begin, stop)
        elif field.type in {FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_INT32}:
            self._check_number(field, name, begin, stop)

    def _check_text(self, name: str, begin: int, stop: int) -> None:
        try:
            self._raw[begin:stop].decode()
        except UnicodeDecodeError as error:
            raise _Fault(name, f"no text at its byte {error.start}", "UTF-8, without surrogates") from error

    def _check_number(self, field: FieldDescriptor, name: str, begin: int, stop: int) -> None:
        is_signed = field.type == FieldDescriptor.TYPE_INT32
        if is_signed:
            value, _ = self._varint(name, begin, stop)
            if not (value < 1 << 31 or (1 << 64) - (1 << 31) <= value < 1 << 64):
                raise _Fault(name, str(value), "a number of 32 bits")
        elif _ABOVE_32_BITS.search(self._raw, begin, stop):
            raise _Fault(name, "above 32 bits", f"at most {(1 << 32) - 1}")

    def _fields(self, path: str, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, wire type and the bytes [begin, stop) of each value."""
        position = start
        while position < end and self._num_fields < MAX_FIELDS_WALKED:
            self._num_fields += 1
            tag, begin = self._varint(path, position, end)
            number, wire_type = tag >> 3, tag & 7
            if wire_type == VARINT:
                _, position = self._varint(path, begin, end)
            elif wire_type == BYTES:
                length, begin = self._varint(path, begin, end)
                position = begin + length
            elif wire_type in {FIXED32, FIXED64}:
                position = begin + (4 if wire_type == FIXED32 else 8)
            else:
                raise _Fault(_whole(path), f"broken: wire type {wire_type}", "protobuf of version 3")
            if position > end:
                raise _Fault(_whole(path), "cut off within a field", "a whole message")
            yield number, wire_type, begin, position

    def _varint(self, path: str, position: int, end: int) -> tuple[int, int]:
        """Return the number and where it ends."""
        found = read_varint(self._raw, position, end)
        if found is None:
            raise _Fault(_whole(path), "cut off within a number", "a whole message")
        return found


def _whole(path: str) -> str:
    return path.rstrip(".") or "message"
