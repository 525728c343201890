"""Reads a number as protobuf writes it, seven bits a byte."""

from __future__ import annotations

MAX_BITS = 70  # ten bytes of seven


def read_varint(raw: bytes, position: int, end: int) -> tuple[int, int] | None:
    """Return the number at a position and where it ends; None = it is cut off, or too long."""
    value = shift = 0
    while position < end and shift < MAX_BITS:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # only the last byte has no high bit
            return value, position
        shift += 7
    return None
