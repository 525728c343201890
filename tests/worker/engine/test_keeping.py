"""Who is given a keeper, and what is refused by name."""

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.block_keeper import BlockKeeper
from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.block_tables import BlockTables, CacheLayout
from dormouse_worker.engine.keeping import make_keeper
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.engine.testing_executor import FakeExecutor
from tests.worker.engine.store_kit import BLOCK_BYTES, StoringFake


class Storing(StoringFake):
    """An executor that is the cache, too."""

    realm = bytes(32)
    block_bytes = BLOCK_BYTES

    def stored_cache(self):
        return self


def make(directory, executor):
    settings = EngineSettings(model="m", kv_store_dir=str(directory))
    return make_keeper(settings, executor, BlockTables(BlockPool(4), CacheLayout(4)), ManualClock())


def test_without_a_directory_nothing_is_kept():
    keeper = make("", FakeExecutor())
    assert not isinstance(keeper, BlockKeeper)
    assert keeper.take_counts() is None


def test_a_directory_is_made_and_used(tmp_path):
    assert isinstance(make(tmp_path / "a" / "b", Storing()), BlockKeeper)
    assert (tmp_path / "a" / "b" / bytes(32).hex()).is_dir()


@pytest.mark.parametrize("secret", ["", "k" * 32])
def test_beside_it_another_worker_can_be_asked_which_may_be_gone(tmp_path, monkeypatch, secret):
    if secret:
        monkeypatch.setenv("DORMOUSE_KV_STORE_KEY", secret)
    source = make(tmp_path, Storing())._open_peer(KvSource("127.0.0.1:1"))
    assert not source.is_own
    assert source.store.look([b"name"]) == 0
    source.close()
    assert "closed=True" in repr(source.store)


def test_with_a_secret_the_realm_is_another(tmp_path, monkeypatch):
    monkeypatch.setenv("DORMOUSE_KV_STORE_KEY", "k" * 32)
    assert isinstance(make(tmp_path, Storing()), BlockKeeper)
    [realm] = [entry.name for entry in tmp_path.iterdir() if entry.is_dir()]
    assert len(realm) == 64
    assert realm != bytes(32).hex()


def test_an_empty_secret_is_refused_and_nothing_is_kept_unencrypted(tmp_path, monkeypatch):
    monkeypatch.setenv("DORMOUSE_KV_STORE_KEY", "")
    with pytest.raises(InvalidSettings, match="DORMOUSE_KV_STORE_KEY has 0 bytes"):
        make(tmp_path / "kv", Storing())
    assert not (tmp_path / "kv").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidSettings, match=r"kv_store_dir .*file.* cannot be used"):
        make(tmp_path / "file", Storing())


def test_who_computes_without_such_a_cache_is_refused(tmp_path):
    with pytest.raises(InvalidSettings, match="groups of ranks keep no blocks"):
        make(tmp_path, FakeExecutor())
