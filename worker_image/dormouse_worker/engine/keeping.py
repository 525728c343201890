"""Gives an engine the keeper that its settings ask for: a store of files in a directory, or none.

Beside it stand the stores of other workers, one by one as streams come from them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.block_keeper import BlockCopier, BlockKeeper
from dormouse_worker.engine.block_tables import BlockTables
from dormouse_worker.engine.no_keeper import NoKeeper
from dormouse_worker.engine.sources import Source
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.grpc_peer import GrpcPeer
from dormouse_worker.kv_store.interface import BlockStore
from dormouse_worker.kv_store.peer_store import PeerStore

KEY_VARIABLE = "DORMOUSE_KV_STORE_KEY"  # a secret; only what we start inherits it
TLS_VARIABLE = "DORMOUSE_MUTUAL_TLS_DIR"  # the front's, which it starts us with


class StoredCache(BlockCopier, Protocol):
    """A cache whose blocks can outlive it."""

    realm: bytes  # of all that decides what a block's bytes mean

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block of the pool."""


@runtime_checkable
class StoringExecutor(Protocol):
    """Runs forward passes over a cache that can be copied out of."""

    def stored_cache(self) -> StoredCache:
        """Return the allocated cache. Raises InvalidSettings where whoever computes has one of another kind."""


def make_keeper(
    settings: EngineSettings, executor: object, tables: BlockTables, clock: Callable[[], float]
) -> NoKeeper:
    """Return who lets blocks outlive the engine. Raises InvalidSettings where the settings ask for what cannot be."""
    if not settings.kv_store_dir:
        return NoKeeper()
    if not isinstance(executor, StoringExecutor):
        raise InvalidSettings(
            f"kv_store_dir is {settings.kv_store_dir!r}; groups of ranks keep no blocks: leave it empty"
        )
    cache = executor.stored_cache()
    try:
        stores = _Stores(settings, cache.realm)
    except OSError as error:
        raise InvalidSettings(
            f"kv_store_dir {settings.kv_store_dir} cannot be used: {error}; it has to be a directory in which the "
            "worker may write"
        ) from error
    return BlockKeeper(stores.own, tables, cache, cache.block_bytes, clock, open_peer=stores.beside)


class _Stores:
    """The files' store, behind a cipher where the environment has a secret, and those of others as seen from here."""

    def __init__(self, settings: EngineSettings, realm: bytes) -> None:
        """Open the directory. Raises InvalidSettings, OSError."""
        self._seal: Callable[[BlockStore], BlockStore] = lambda store: store
        if KEY_VARIABLE in os.environ:
            from dormouse_worker.kv_store.sealed_store import SealedStore, Secret, read_secret  # slow to import

            secret = Secret(read_secret(os.environ[KEY_VARIABLE]), realm)
            realm, self._seal = secret.realm, lambda store: SealedStore(store, secret)
        self._realm = realm
        self._files = FileBlockStore(Path(settings.kv_store_dir), realm, settings.kv_store_size_bytes)
        self.own = self._seal(self._files)

    def beside(self, kv_source: KvSource) -> Source:
        """Return the files here and the blocks of another worker, as they lie there, as one store."""
        peer = GrpcPeer(kv_source, os.environ.get(TLS_VARIABLE, ""))
        return Source(self._seal(PeerStore(self._files, peer, self._realm)), is_own=False, close=peer.close)
