"""Blocks that lie encrypted in another store (AES-256-GCM), under names that tell nothing of what they hold.

    nonce of 12 random bytes, the block encrypted, tag of 16 bytes

The tag covers the realm and the name, too: whoever can write to the store can take blocks away, and can neither change
nor exchange any. All keys come from one secret and the realm (HKDF-SHA-256), so stores of other secrets are other
realms, and a secret that changed makes every block absent. A random nonce is safe for some 2³² blocks of a realm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import overload

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.kv_store.block_file import REALM_BYTES
from dormouse_worker.kv_store.interface import Block, BlockName, BlockStore, Miss

MIN_SECRET_BYTES = 32
NAME_BYTES = 32
_KEY_BYTES = 32
_NONCE_BYTES, _TAG_BYTES = 12, 16
SEAL_BYTES = _NONCE_BYTES + _TAG_BYTES


class Secret:
    """What the keys of one realm are made of."""

    def __init__(self, secret: bytes, realm: bytes) -> None:
        derived = HKDF(SHA256(), 2 * _KEY_BYTES + REALM_BYTES, salt=None, info=b"dormouse kv store " + realm)
        material = derived.derive(secret)
        self.key, self.name_key = material[:_KEY_BYTES], material[_KEY_BYTES : 2 * _KEY_BYTES]
        self.realm = material[2 * _KEY_BYTES :]  # under which the blocks are stored

    def __repr__(self) -> str:
        return f"Secret(of the realm {self.realm.hex()[:12]})"


def read_secret(text: str) -> bytes:
    """Return the secret that a variable holds. Raises InvalidSettings if it could be guessed."""
    secret = text.strip().encode()
    if len(secret) < MIN_SECRET_BYTES:
        raise InvalidSettings(
            f"DORMOUSE_KV_STORE_KEY has {len(secret)} bytes; a secret has at least {MIN_SECRET_BYTES}, as "
            "`openssl rand -hex 32` makes one"
        )
    return secret


class SealedStore:
    """Implements `BlockStore` over one that is given, of the realm `secret.realm`."""

    def __init__(self, store: BlockStore, secret: Secret) -> None:
        self._store = store
        self._secret = secret
        self._cipher = AESGCM(secret.key)

    def __repr__(self) -> str:
        return f"SealedStore({self._store!r})"

    @property
    def num_bytes(self) -> int:
        """See `BlockStore`."""
        return self._store.num_bytes

    def capacity(self, num_bytes: int) -> int:
        """See `BlockStore`."""
        return self._store.capacity(num_bytes + SEAL_BYTES)

    def has(self, name: BlockName) -> bool:
        """See `BlockStore`."""
        return self._store.has(self._sealed_name(name))

    def read(self, name: BlockName, into: memoryview) -> Miss | None:
        """See `BlockStore`. What was changed is removed."""
        sealed_name = self._sealed_name(name)
        sealed = memoryview(bytearray(into.nbytes + SEAL_BYTES))
        if (miss := self._store.read(sealed_name, sealed)) is not None:
            return miss
        try:
            self._cipher.decrypt_into(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], self._covered(sealed_name), into)
        except InvalidTag:
            self._store.drop([sealed_name])
            return Miss.DAMAGED
        return None

    def expect(self, names: Sequence[BlockName]) -> None:
        """See `BlockStore`."""
        self._store.expect([self._sealed_name(name) for name in names])

    def write(self, blocks: Sequence[Block], recompute_s: float = 0.0) -> dict[Miss, int]:
        """See `BlockStore`."""
        return self._store.write(_OneByOne(blocks, self._seal), recompute_s)

    def touch(self, names: Sequence[BlockName], recompute_s: float = 0.0) -> None:
        """See `BlockStore`."""
        self._store.touch([self._sealed_name(name) for name in names], recompute_s)

    def drop(self, names: Sequence[BlockName]) -> None:
        """See `BlockStore`."""
        self._store.drop([self._sealed_name(name) for name in names])

    def clear(self) -> None:
        """See `BlockStore`."""
        self._store.clear()

    def look(self, names: Sequence[BlockName]) -> int:
        """See `BlockStore`."""
        return self._store.look([self._sealed_name(name) for name in names])

    def is_shared(self) -> bool:
        """See `BlockStore`."""
        return self._store.is_shared()

    def _sealed_name(self, name: BlockName) -> BlockName:
        return blake2b(name, key=self._secret.name_key, digest_size=NAME_BYTES).digest()

    def _covered(self, sealed_name: BlockName) -> bytes:
        return self._secret.realm + sealed_name

    def _seal(self, block: Block) -> Block:
        name, nonce = self._sealed_name(block.name), os.urandom(_NONCE_BYTES)
        sealed = memoryview(bytearray(block.data.nbytes + SEAL_BYTES))
        sealed[:_NONCE_BYTES] = nonce
        self._cipher.encrypt_into(nonce, block.data, self._covered(name), sealed[_NONCE_BYTES:])
        return Block(name, sealed)


class _OneByOne(Sequence[Block]):
    """Blocks that are encrypted when they are asked for: one at a time is in memory twice."""

    def __init__(self, blocks: Sequence[Block], seal: Callable[[Block], Block]) -> None:
        self._blocks = blocks
        self._seal = seal

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | Sequence[Block]:
        if isinstance(index, slice):
            return _OneByOne(self._blocks[index], self._seal)
        return self._seal(self._blocks[index])
