"""Builders of the block tables' tests: small ones, names of blocks, a sequence that is computed."""

from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.block_tables import BlockTables, CacheLayout, Prefix
from dormouse_worker.engine.prefix import hash_block, root_hash

EMPTY = Prefix(0, ([],))


def make_tables(num_blocks=10, windows=(None,), block_size=4):
    return BlockTables(BlockPool(num_blocks), CacheLayout(block_size, windows))


def hashes(count, start=0):
    chain = [root_hash("")]
    for n in range(count):
        chain.append(hash_block(chain[-1], [start + n]))
    return chain[1:]


def empty(tables):
    return Prefix(0, tuple([] for _ in tables.layout.windows))


def run(tables, name, num_tokens, chain=()):
    """Let a sequence without a known prefix compute so many tokens."""
    assert tables.admit(name, empty(tables), num_tokens, num_tokens)
    tables.commit(name, list(chain), num_tokens)


class CountingPool(BlockPool):
    """A pool that counts how often it is searched."""

    num_finds = 0

    def find(self, key):
        self.num_finds += 1
        return super().find(key)
