"""How much of a large message is images or sound, told from its bytes: all else is bounded before it is parsed.

A parsed message may take a hundred times its bytes; an image takes as many as it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dormouse_api.limits import MAX_AUDIO_BYTES, MAX_IMAGES_BYTES, MAX_MESSAGE_BYTES
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.varint import read_varint

MAX_FIELDS = 20_000  # that are looked at; a message with more is taken for one without images
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_CHAT_TO_PART, _IMAGE, _FRAME, _SOUND = (1, 8), (2,), (4, 1), (5,)
_WAYS = {  # from the message to an image, to a video's frame, or to a sound: the fields on the way
    kind: tuple(
        (kind.DESCRIPTOR.fields_by_name["chat"].number, *_CHAT_TO_PART, *last) for last in (_IMAGE, _FRAME, _SOUND)
    )
    for kind in (pb.GenerateRequest, pb.TokenizeRequest)
} | {pb.TranscribeRequest: ((pb.TranscribeRequest.DESCRIPTOR.fields_by_name["audio"].number,),)}
_LIMITS = {pb.TranscribeRequest: ("sound", MAX_AUDIO_BYTES)}
_IMAGES = ("images, videos and sounds", MAX_IMAGES_BYTES)


Ways = tuple[tuple[int, ...], ...]  # none of them the beginning of another


class _Broken(Exception):
    """It is no message, or has too many fields; who parses it will say so."""


def excess(kind: type[Any], raw: bytes) -> str:
    """Return what of a message of this kind is too large to be parsed: "SIZE; the limit is N", "" if nothing is."""
    if len(raw) <= MAX_MESSAGE_BYTES:
        return ""
    num_images = _image_bytes(raw, _WAYS[kind]) if kind in _WAYS else 0
    what, limit = _LIMITS.get(kind, _IMAGES)
    if len(raw) - num_images > MAX_MESSAGE_BYTES:
        beside = f" beside its {what}" if num_images else ""
        return f"{len(raw) - num_images} bytes{beside}; the limit is {MAX_MESSAGE_BYTES}"
    if num_images > limit:
        return f"{num_images} bytes of {what}; the limit is {limit}"
    return ""


def _image_bytes(raw: bytes, ways: Ways) -> int:
    try:
        return sum(stop - begin for begin, stop in _Walk(raw).find(ways, 0, len(raw)))
    except _Broken:
        return 0


class _Walk:
    """One pass over the fields on the way."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._num_left = MAX_FIELDS

    def find(self, ways: Ways, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where the values at the ends of the ways lie. Raises _Broken."""
        position = start
        while position < end:
            self._num_left -= 1
            tag, begin = self._varint(position, end)
            kind = tag & 7
            if kind == _BYTES:
                length, begin = self._varint(begin, end)
                position = begin + length
            elif kind == _VARINT:
                _, position = self._varint(begin, end)
            else:
                position = begin + _SIZES.get(kind, end)
            if position > end or self._num_left < 0:
                raise _Broken
            rest = tuple(way[1:] for way in ways if way[0] == tag >> 3) if kind == _BYTES else ()
            if rest:
                yield from self.find(rest, begin, position) if rest[0] else ((begin, position),)

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        found = read_varint(self._raw, position, end)
        if found is None:
            raise _Broken
        return found
