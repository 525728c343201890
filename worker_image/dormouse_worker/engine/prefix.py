"""Names the content of blocks: a chain of SHA-256 over (salt, parent, token ids, images, adapter).

Equal prefixes share names. An adapter is part of the block in which it begins, and so of all behind it; those before it
are the base's.

Where an encoder reads a prompt, all of that is part of the first block's name already.

A name covers everything from the sequence's start, because keys and values depend on all tokens before. Nobody can
make two prefixes collide, nor share the blocks of a salt that he does not know.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence

from dormouse_worker.common.images import ImageInput

BlockHash = bytes


def root_hash(salt: str) -> BlockHash:
    """Return the parent of a sequence's first block."""
    return hashlib.sha256(b"dormouse prefix\0" + salt.encode(errors="surrogatepass")).digest()


def source_hash(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """Return the parent of the first block where an encoder reads these tokens whole: each depends on all of them."""
    return hashlib.sha256(b"dormouse source\0" + parent + array("Q", token_ids).tobytes()).digest()


def hash_block(parent: BlockHash, token_ids: Sequence[int], beside: bytes = b"") -> BlockHash:
    """Return the name of a full block that follows `parent`; `beside` is what else its numbers depend on."""
    return hashlib.sha256(parent + array("Q", token_ids).tobytes() + beside).digest()


def name_adapter(adapter: str, place: int) -> bytes:
    """Return which adapter, by its digest, begins at a token of a block."""
    return b"adapter\0" + array("q", (place,)).tobytes() + adapter.encode()


def name_images(images: Sequence[ImageInput], start: int, end: int) -> bytes:
    """Return which rows of which images the tokens at [start, end) stand for: their ids are all the same."""
    return b"".join(name + array("q", place).tobytes() for name, place in _runs(images, start, end))


def _runs(images: Sequence[ImageInput], start: int, end: int) -> Iterator[tuple[bytes, tuple[int, int, int]]]:
    """Yield of each run of an image's tokens its name, where it begins and ends, and its first row."""
    for image in images:
        row = 0
        for first, count in image.spans:
            begin, stop = max(start, first), min(end, first + count)
            if begin < stop:
                yield image.name, (begin - start, stop - start, row + begin - first)
            row += count
