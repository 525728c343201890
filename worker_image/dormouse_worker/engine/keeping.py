"""Gives an engine the keeper that its settings ask for: a store of files in a directory, or none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.block_keeper import BlockCopier, BlockKeeper
from dormouse_worker.engine.block_tables import BlockTables
from dormouse_worker.engine.no_keeper import NoKeeper
from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.interface import BlockStore

KEY_VARIABLE = "DORMOUSE_KV_STORE_KEY"  # a secret; only what we start inherits it


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
        store = _make_store(settings, cache.realm)
    except OSError as error:
        raise InvalidSettings(
            f"kv_store_dir {settings.kv_store_dir} cannot be used: {error}; it has to be a directory in which the "
            "worker may write"
        ) from error
    return BlockKeeper(store, tables, cache, cache.block_bytes, clock)


def _make_store(settings: EngineSettings, realm: bytes) -> BlockStore:
    """Return the files' store; behind a cipher where the environment has a secret. Raises InvalidSettings, OSError."""
    root, limit_bytes = Path(settings.kv_store_dir), settings.kv_store_size_bytes
    if KEY_VARIABLE not in os.environ:
        return FileBlockStore(root, realm, limit_bytes)
    from dormouse_worker.kv_store.sealed_store import SealedStore, Secret, read_secret  # ciphers take time to import

    secret = Secret(read_secret(os.environ[KEY_VARIABLE]), realm)
    return SealedStore(FileBlockStore(root, secret.realm, limit_bytes), secret)
