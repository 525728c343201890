"""Names the content of blocks: a chain of SHA-256 over (salt, parent, token ids, images). Equal prefixes share names.

A name covers everything from the sequence's start, because keys and values depend on all tokens before. Nobody can
make two prefixes collide, nor share the blocks of a salt that he does not know.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence

from dormouse_worker.common.images import ImageInput

BlockHash = bytes


def root_hash(salt: str, adapter: str = "") -> BlockHash:
    """Return the parent of a sequence's first block. An adapter's digest changes the numbers behind equal tokens."""
    root = hashlib.sha256(b"dormouse prefix\0" + salt.encode(errors="surrogatepass")).digest()
    return hashlib.sha256(b"adapter\0" + root + adapter.encode()).digest() if adapter else root


def hash_block(parent: BlockHash, token_ids: Sequence[int], images: bytes = b"") -> BlockHash:
    """Return the name of a full block that follows `parent`; `images` is what `name_images` returns for it."""
    return hashlib.sha256(parent + array("Q", token_ids).tobytes() + images).digest()


def name_images(images: Sequence[ImageInput], start: int, end: int) -> bytes:
    """Return which rows of which images the tokens at [start, end) stand for: their ids are all the same."""
    return b"".join(digest + array("q", place).tobytes() for digest, place in _runs(images, start, end))


def _runs(images: Sequence[ImageInput], start: int, end: int) -> Iterator[tuple[bytes, tuple[int, int, int]]]:
    """Yield of each run of an image's tokens its digest, where it begins and ends, and its first row."""
    for image in images:
        row = 0
        for first, count in image.spans:
            begin, stop = max(start, first), min(end, first + count)
            if begin < stop:
                yield image.digest, (begin - start, stop - start, row + begin - first)
            row += count
