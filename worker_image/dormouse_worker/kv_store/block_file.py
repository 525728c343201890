"""The format of a block's file: a header of fixed size that says what follows, then the block's bytes. Pure.

    0    magic, version           what reads it, and whether it can
    8    realm                    SHA-256: model, layout, dtype, share
    40   name, filled with zeros  and its length behind
    108  bytes of the block, their CRC-32
    120  CRC-32 of the header so far

The checksums find accidents, not malice: who can write the files can write what he likes, so the directory is the
worker's alone (0700).
"""

from __future__ import annotations

import struct
import zlib

from dormouse_worker.kv_store.interface import MAX_NAME_BYTES, BlockName, Miss

MAGIC = b"DORMKV"
VERSION = 1
REALM_BYTES = 32
_BODY = struct.Struct(f"<6sH{REALM_BYTES}s{MAX_NAME_BYTES}sIQI")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _BODY.size + _CHECK.size
SUFFIX = ".kv"


def path_below(realm: bytes, name: BlockName) -> str:
    """Return where a block's file lies below its root."""
    return f"{realm.hex()}/{name.hex()}{SUFFIX}"


def pack_header(realm: bytes, name: BlockName, data: memoryview) -> bytes:
    """Return the header of a block's file."""
    assert len(realm) == REALM_BYTES
    assert 0 < len(name) <= MAX_NAME_BYTES
    body = _BODY.pack(MAGIC, VERSION, realm, name, len(name), data.nbytes, zlib.crc32(data))
    return body + _CHECK.pack(zlib.crc32(body))


def check_block(header: bytes, realm: bytes, name: BlockName, data: memoryview) -> Miss | None:
    """Return what is wrong with a file that was read; None = the data are the block's. `header` may be short."""
    if len(header) < HEADER_BYTES:
        return Miss.TRUNCATED
    body = header[: _BODY.size]
    magic, version, its_realm, its_name, name_bytes, num_bytes, checksum = _BODY.unpack(body)
    if magic == MAGIC and version != VERSION:
        return Miss.VERSION
    if magic != MAGIC or _CHECK.unpack_from(header, _BODY.size)[0] != zlib.crc32(body):
        return Miss.DAMAGED
    if its_realm != realm or its_name[:name_bytes] != name or num_bytes != data.nbytes:
        return Miss.OTHER
    return None if zlib.crc32(data) == checksum else Miss.DAMAGED
