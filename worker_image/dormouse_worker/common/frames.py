"""How messages of `ipc` cross a socket: one frame is a 4-byte big-endian length and a MessagePack array of them.

So one step costs one write. Never pickle: only these types can be decoded.
"""

from __future__ import annotations

import struct

import msgspec

from dormouse_worker.common.ipc import EngineMessage, FrontMessage

MAX_FRAME_BYTES = 64 << 20  # far above any honest frame; a larger length means a broken stream

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_front_decoder = msgspec.msgpack.Decoder(list[FrontMessage])
_engine_decoder = msgspec.msgpack.Decoder(list[EngineMessage])


def encode_frame(messages: list[FrontMessage] | list[EngineMessage]) -> bytes:
    """Return one frame, ready to be written."""
    return frame(_encoder.encode(messages))


def frame(payload: bytes) -> bytes:
    """Return the payload with its length before it."""
    return _LENGTH.pack(len(payload)) + payload


class FrameSplitter:
    """Cuts a byte stream into frame payloads; feed it whatever arrived."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __repr__(self) -> str:
        return f"FrameSplitter({len(self._buffer)} bytes waiting)"

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that are complete now. Raises ValueError on a length above MAX_FRAME_BYTES."""
        self._buffer += data
        payloads = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"frame of {length} bytes is above the limit of {MAX_FRAME_BYTES}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            payloads.append(bytes(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return payloads


def decode_front(payload: bytes) -> list[FrontMessage]:
    """Decode what a front sent. Raises msgspec.DecodeError on anything else."""
    return _front_decoder.decode(payload)


def decode_engine(payload: bytes) -> list[EngineMessage]:
    """Decode what an engine sent. Raises msgspec.DecodeError on anything else."""
    return _engine_decoder.decode(payload)
