"""Names the content of blocks: a chain of SHA-256 over (salt, parent, token ids), so equal prefixes get equal names.

A name covers everything from the sequence's start, because keys and values depend on all tokens before. Nobody can
make two prefixes collide, nor share the blocks of a salt that he does not know.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

BlockHash = bytes


def root_hash(salt: str, adapter: str = "") -> BlockHash:
    """Return the parent of a sequence's first block. An adapter's digest changes the numbers behind equal tokens."""
    root = hashlib.sha256(b"dormouse prefix\0" + salt.encode(errors="surrogatepass")).digest()
    return hashlib.sha256(b"adapter\0" + root + adapter.encode()).digest() if adapter else root


def hash_block(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """Return the name of a full block that follows `parent`."""
    return hashlib.sha256(parent + array("Q", token_ids).tobytes()).digest()
