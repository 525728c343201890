"""Opus of a WebM file as an Ogg file, packet by packet, for a decoder that knows only that. Decodes nothing itself.

    EBML header | Segment | … Tracks | TrackEntry … | Cluster | SimpleBlock …     browsers know few of the sizes
    OpusHead page | OpusTags page | pages of packets                              what is made of it

Elements that have others in them are not looked up but gone through: what follows their header is the next element.
Formats: RFC 8794 (EBML), RFC 9559 (Matroska), RFC 7845 (Ogg Opus), RFC 6716 (how long a packet lasts).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

MAGIC = b"\x1aE\xdf\xa3"
OPUS = "A_OPUS"
_GONE_THROUGH = frozenset({0x18538067, 0x1F43B675, 0x1654AE6B, 0xAE, 0xA0})  # Segment to BlockGroup
_ENTRY, _NUMBER, _CODEC, _PRIVATE, _ENCODINGS = 0xAE, 0xD7, 0x86, 0x63A2, 0x6D80
_BLOCKS = (0xA3, 0xA1)  # SimpleBlock, Block
_LACING = 0x06  # of a block's flags
_MOST_SEGMENTS, _SEGMENT_BYTES = 255, 255  # of a page
_MOST_HEAD_BYTES = 21 + 255  # of an OpusHead: a byte for each channel
_FIRST, _LAST = 2, 4  # flags of pages
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_SILK, _HYBRID, _CELT = (480, 960, 1920, 2880), (480, 960), (120, 240, 480, 960)  # samples of a frame at 48 kHz
_MOST_SAMPLES = 5760  # of a packet
MOST_ELEMENTS = 1 << 21  # two hours in packets of 20 ms have half as many, and reading these takes seconds


class WebmRefused(Exception):
    """A file cannot be used; the message repeats nothing of it but the name of a codec."""


@dataclass(slots=True)
class _Track:
    number: int = 0
    codec: str = ""
    head: bytes = b""
    is_encoded: bool = False


@dataclass(slots=True)
class _Found:
    tracks: list[_Track] = field(default_factory=list)
    packets: list[bytes] = field(default_factory=list)


def as_ogg(data: bytes, *, most_elements: int = MOST_ELEMENTS) -> bytes:
    """Return an Ogg file of the first track of Opus. Raises WebmRefused."""
    found = _read(data, most_elements)
    track = _opus_of(found.tracks)
    assert track is not None, "packets are only looked for behind it"
    return b"".join(_pages(track.head, found.packets))


def _read(data: bytes, most_elements: int) -> _Found:
    found = _Found()
    for number, (kind, payload) in enumerate(_elements(data)):
        if number >= most_elements:
            raise WebmRefused(f"it has more elements than {most_elements}")
        if kind == _ENTRY:
            found.tracks.append(_Track())
        elif kind in _BLOCKS:
            _take(payload, _chosen(found.tracks), found.packets)
        elif found.tracks:
            _note(kind, payload, found.tracks[-1])
    _chosen(found.tracks)
    if not found.packets:
        raise WebmRefused("it has no samples; allowed: at least 1")
    return found


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield what lies in the file, in its order; of elements that have others, that they begin."""
    at = 0
    while at < len(data):
        kind, at = _number(data, at, keeps_marker=True)
        size, at = _number(data, at)
        if kind in _GONE_THROUGH:
            yield kind, b""
            continue
        if size < 0 or at + size > len(data):
            return  # it was cut off, or is of a kind that nobody knows the end of
        yield kind, data[at : at + size]
        at += size


def _number(data: bytes, at: int, *, keeps_marker: bool = False) -> tuple[int, int]:
    """Return a number of variable length, -1 = unknown, and where the next thing begins. Raises WebmRefused."""
    first = data[at] if at < len(data) else 0
    length = 9 - first.bit_length()
    if not first or at + length > len(data):
        raise WebmRefused("it cannot be decoded: an element has no length")
    raw = int.from_bytes(data[at : at + length], "big")
    mask = (1 << (7 * length)) - 1
    if keeps_marker:
        return raw, at + length
    return (-1 if raw & mask == mask else raw & mask), at + length


def _note(kind: int, payload: bytes, track: _Track) -> None:
    if kind == _NUMBER:
        track.number = int.from_bytes(payload, "big")
    elif kind == _CODEC:
        track.codec = payload.rstrip(b"\0").decode("ascii", "replace")
    elif kind == _PRIVATE:
        track.head = payload
    elif kind == _ENCODINGS:
        track.is_encoded = True


def _opus_of(tracks: list[_Track]) -> _Track | None:
    return next((track for track in tracks if track.codec == OPUS), None)


def _chosen(tracks: list[_Track]) -> _Track:
    """Return the track that is heard. Raises WebmRefused."""
    track = _opus_of(tracks)
    if track is None:
        codecs = ", ".join(sorted({ascii(track.codec[:32]) for track in tracks})) or "none"
        raise WebmRefused(f"its tracks are of the kinds {codecs}; allowed in a webm is {OPUS}")
    if track.is_encoded or not track.head.startswith(b"OpusHead") or len(track.head) > _MOST_HEAD_BYTES:
        raise WebmRefused(f"its track is compressed once more, or has no OpusHead; allowed is plain {OPUS}")
    return track


def _take(block: bytes, track: _Track, packets: list[bytes]) -> None:
    """Note a block's packet if it is the track's. Raises WebmRefused."""
    number, at = _number(block, 0)
    if number != track.number or at + 3 >= len(block):
        return
    if block[at + 2] & _LACING:
        raise WebmRefused("its blocks are laced; allowed is one packet in each")
    packets.append(block[at + 3 :])


def _pages(head: bytes, packets: list[bytes]) -> Iterator[bytes]:
    """Yield the pages: each as many packets as it has room for."""
    yield _page(0, _FIRST, 0, [head])
    yield _page(1, 0, 0, [b"OpusTags" + struct.pack("<II", 0, 0)])
    number, num_samples = 2, 0
    some: list[bytes] = []
    num_segments = 0
    for packet in packets:
        needed = len(packet) // _SEGMENT_BYTES + 1
        if needed > _MOST_SEGMENTS:
            raise WebmRefused(f"a packet has {len(packet)} bytes; allowed: {_MOST_SEGMENTS * _SEGMENT_BYTES - 1}")
        if num_segments + needed > _MOST_SEGMENTS:
            yield _page(number, 0, num_samples, some)
            number, some, num_segments = number + 1, [], 0
        some.append(packet)
        num_segments += needed
        num_samples += _samples_of(packet)
    yield _page(number, _LAST, num_samples, some)


def _page(number: int, flags: int, num_samples: int, packets: list[bytes]) -> bytes:
    """Return a page, which ends with a packet's end; `num_samples` at 48 kHz up to there."""
    lengths = [divmod(len(packet), _SEGMENT_BYTES) for packet in packets]
    sizes = b"".join(b"\xff" * whole + bytes([rest]) for whole, rest in lengths)
    begin = struct.pack("<4sBBqII", b"OggS", 0, flags, num_samples, 0, number)
    body = bytes([len(sizes)]) + sizes + b"".join(packets)
    return begin + struct.pack("<I", _checksum(begin + bytes(4) + body)) + body


def _checksum(page: bytes) -> int:
    """Return the sum of RFC 3533: zlib's, but with the bits of each byte and of the sum the other way round, from 0."""
    turned = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{turned:032b}"[::-1], 2)


def _samples_of(packet: bytes) -> int:
    """Return how long a packet lasts, in samples at 48 kHz. Raises WebmRefused."""
    kind, code = packet[0] >> 3, packet[0] & 3
    each = _SILK[kind % 4] if kind < 12 else _HYBRID[kind % 2] if kind < 16 else _CELT[kind % 4]
    count = (1, 2, 2)[code] if code < 3 else packet[1] & 0x3F if len(packet) > 1 else 0
    if not 0 < count * each <= _MOST_SAMPLES:
        raise WebmRefused(f"a packet lasts {count * each} samples; allowed: 1 to {_MOST_SAMPLES}")
    return count * each
