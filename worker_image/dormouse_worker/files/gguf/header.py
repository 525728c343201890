"""What the header of a GGUF file says, checked before anybody believes it. Reads headers only; no torch.

    "GGUF" | version | counts | key, type, value … | name, shape, type, offset … | padding | data

Nothing is allocated that the file does not hold: counts and lengths are held against what is left of it first.
Tensors lie in the data one behind the other, each at a multiple of the alignment, as those who write the format do.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dormouse_worker.common.errors import ModelInvalid, ModelNotFound
from dormouse_worker.files.gguf.types import BLOCKS, NAMES
from dormouse_worker.files.safetensors_files import StoredTensor

SUFFIX = ".gguf"
MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_KEYS = MOST_TENSORS = 1 << 16
MOST_KEY_BYTES, MOST_NAME_BYTES, MOST_DIMENSIONS = 1 << 16, 256, 4
MOST_ALIGNMENT = 1 << 16
_LEAST_KEY, _LEAST_TENSOR = 13, 32  # bytes of the shortest
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT_KEY, _ALIGNMENT = "general.alignment", 32


class Strings:
    """An array of strings as it lies in the file, which takes no more memory than there; read one after the other."""

    def __init__(self, raw: bytes, count: int, key: str, file: Path) -> None:
        """`raw` has each string behind its length, u64."""
        self._raw, self._count, self._key, self._file = raw, count, key, file

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Strings({self._key}, {self._count})"

    def __iter__(self) -> Iterator[str]:
        """Yield them. Raises ModelInvalid for one that is no UTF-8."""
        position = 0
        for number in range(self._count):
            (length,) = struct.unpack_from("<Q", self._raw, position)
            position += 8 + length
            yield _text(self._file, f"{self._key} [{number}]", self._raw[position - length : position])


Value = bool | int | float | str | array | Strings  # type: ignore[type-arg]  # of any number


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What one file holds."""

    file: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]
    header_bytes: int
    header_sha256: str


def read_gguf(file: Path) -> GgufFile:
    """Return what a file says of itself. Raises ModelNotFound, or ModelInvalid naming what does not add up."""
    try:
        with file.open("rb") as stream:
            return _read(_Cursor(file, stream))
    except FileNotFoundError as error:
        raise ModelNotFound(
            f"{file}: no such file; check spec.model.uri and that its volume holds the model"
        ) from error
    except OSError as error:
        raise ModelInvalid(f"{file}: cannot be read: {error}") from error


def read_raw_gguf_header(file: Path) -> bytes:
    """Return the header as it stands in a file, which is checked."""
    num_bytes = read_gguf(file).header_bytes
    with file.open("rb") as stream:
        return stream.read(num_bytes)


class _Cursor:
    """Reads a file from its begin and never asks for more than is left of it."""

    def __init__(self, file: Path, stream: BinaryIO) -> None:
        self.file, self._stream = file, stream
        self.size = os.fstat(stream.fileno()).st_size
        self.position = 0
        self._sum = hashlib.sha256()

    def take(self, num_bytes: int, what: str) -> bytes:
        """Return the next bytes. Raises ModelInvalid where the file ends before."""
        if num_bytes > self.left:
            raise ModelInvalid(
                f"{self.file}: truncated or damaged: {what} takes {num_bytes} bytes, and {self.left} are left of "
                f"{self.size}; copy the file again"
            )
        read = self._stream.read(num_bytes)
        if len(read) != num_bytes:
            raise ModelInvalid(f"{self.file}: cut while it was read; copy the file again")
        self.position += num_bytes
        self._sum.update(read)
        return read

    @property
    def left(self) -> int:
        return self.size - self.position

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()

    def number(self, code: str, what: str) -> int:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))
        return int(value)

    def count(self, what: str, least_bytes: int, most: int) -> int:
        """Return how many of something follow, each of which takes some bytes."""
        count = self.number("Q", f"the number of {what}")
        if count > most or count * least_bytes > self.left:
            raise self.damaged(f"has {count} {what}, and {self.left} bytes are left; at most {most} are read")
        return count

    def string(self, what: str, most_bytes: int | None = None) -> str:
        length = self.number("Q", f"the length of {what}")
        if most_bytes is not None and length > most_bytes:
            raise self.damaged(f"has {what} of {length} bytes; at most {most_bytes} are read")
        return _text(self.file, what, self.take(length, what))

    def damaged(self, what: str) -> ModelInvalid:
        return ModelInvalid(f"{self.file}: {what}; copy the file again")


def _text(file: Path, what: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ModelInvalid(f"{file}: {what} is no UTF-8 ({error}); copy the file again") from error


def _read(cursor: _Cursor) -> GgufFile:
    if cursor.take(min(4, cursor.size), "the magic") != MAGIC:
        raise cursor.damaged("does not begin with GGUF")
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        raise ModelInvalid(
            f"{cursor.file}: is GGUF of version {version}; read are {' and '.join(map(str, VERSIONS))}, of processors "
            "that put the low byte first: convert the model again"
        )
    num_tensors = cursor.count("tensors", _LEAST_TENSOR, MOST_TENSORS)
    num_keys = cursor.count("keys", _LEAST_KEY, MOST_KEYS)
    metadata = _read_metadata(cursor, num_keys)
    described = [_Described.read(cursor) for _ in range(num_tensors)]
    header_bytes, alignment = cursor.position, _alignment(cursor, metadata)
    tensors = _place(cursor, described, _aligned(header_bytes, alignment), alignment)
    return GgufFile(cursor.file, metadata, tensors, header_bytes, cursor.sha256)


def _read_metadata(cursor: _Cursor, num_keys: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(num_keys):
        key = cursor.string("a key", MOST_KEY_BYTES)
        if key in metadata:
            raise cursor.damaged(f"has the key {key[:80]!r} twice")
        metadata[key] = _read_value(cursor, key, cursor.number("I", f"the type of {key[:80]}"))
    return metadata


def _read_value(cursor: _Cursor, key: str, kind: int) -> Value:
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind not in _NUMBERS:
        raise cursor.damaged(f"has the key {key[:80]!r} of an unknown type {kind}")
    code = _NUMBERS[kind]
    (value,) = struct.unpack(f"<{code}", cursor.take(struct.calcsize(f"<{code}"), key))
    number: bool | int | float = value
    return number


def _read_array(cursor: _Cursor, key: str) -> Value:
    kind = cursor.number("I", f"the type of {key[:80]}")
    if kind == _STRING:
        count = cursor.count(f"strings in {key[:80]}", 8, cursor.size)
        return Strings(_read_strings(cursor, key, count), count, key, cursor.file)
    if kind not in _NUMBERS:
        raise cursor.damaged(f"has the key {key[:80]!r}, an array of the type {kind}, which is not read")
    code = _NUMBERS[kind].replace("?", "B")
    numbers = array(code)
    count = cursor.count(f"numbers in {key[:80]}", numbers.itemsize, cursor.size)
    numbers.frombytes(cursor.take(count * numbers.itemsize, key))
    return numbers


def _read_strings(cursor: _Cursor, key: str, count: int) -> bytes:
    raw = bytearray()
    for _ in range(count):
        prefix = cursor.take(8, key)
        raw += prefix
        raw += cursor.take(int.from_bytes(prefix, "little"), key)
    return bytes(raw)


@dataclass(frozen=True, slots=True)
class _Described:
    """A tensor as the header describes it."""

    name: str
    shape: tuple[int, ...]  # rows first
    kind: str
    offset: int  # from the begin of the data
    num_bytes: int

    @classmethod
    def read(cls, cursor: _Cursor) -> _Described:
        name = cursor.string("a tensor's name", MOST_NAME_BYTES)
        num_dimensions = cursor.number("I", f"the shape of {name}")
        if not 1 <= num_dimensions <= MOST_DIMENSIONS:
            raise cursor.damaged(f"tensor {name!r} has {num_dimensions} dimensions; 1 to {MOST_DIMENSIONS} are read")
        sizes = struct.unpack(f"<{num_dimensions}Q", cursor.take(8 * num_dimensions, f"the shape of {name}"))
        number, offset = cursor.number("I", f"the type of {name}"), cursor.number("Q", f"the place of {name}")
        kind = NAMES.get(number, str(number))
        if kind not in BLOCKS:
            raise ModelInvalid(
                f"{cursor.file}: tensor {name!r} is of type {kind}; read are {', '.join(BLOCKS)}: use a file of the "
                "model in another quantization, such as Q4_K_M or Q8_0"
            )
        in_block, block_bytes = BLOCKS[kind]
        if 0 in sizes or sizes[0] % in_block:
            raise cursor.damaged(f"tensor {name!r} is {kind} {list(sizes)}, whose rows are no blocks of {in_block}")
        return cls(name, sizes[::-1], kind, offset, math.prod(sizes) // in_block * block_bytes)


def _alignment(cursor: _Cursor, metadata: Mapping[str, Value]) -> int:
    found = metadata.get(_ALIGNMENT_KEY, _ALIGNMENT)
    if type(found) is not int or not 1 <= found <= MOST_ALIGNMENT or found & (found - 1):
        raise cursor.damaged(f"{_ALIGNMENT_KEY} is {str(found)[:80]}; allowed: powers of two to {MOST_ALIGNMENT}")
    return found


def _place(cursor: _Cursor, described: list[_Described], base: int, alignment: int) -> dict[str, StoredTensor]:
    """Return where each tensor lies. Raises ModelInvalid for bytes that two share, gaps, and what the file lacks."""
    tensors: dict[str, StoredTensor] = {}
    due = 0
    for one in sorted(described, key=lambda tensor: tensor.offset):
        if one.offset != due:
            what = "shares bytes with another tensor" if one.offset < due else "begins behind a gap"
            raise cursor.damaged(f"tensor {one.name!r} {what}: at byte {one.offset} of the data where {due} is due")
        if one.name in tensors:
            raise cursor.damaged(f"has two tensors {one.name!r}")
        start = base + one.offset
        if start + one.num_bytes > cursor.size:
            raise cursor.damaged(
                f"truncated or damaged: tensor {one.name!r} ends at byte {start + one.num_bytes} of {cursor.size}"
            )
        tensors[one.name] = StoredTensor(cursor.file, one.kind, one.shape, start, start + one.num_bytes)
        due = _aligned(one.offset + one.num_bytes, alignment)
    return tensors


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
