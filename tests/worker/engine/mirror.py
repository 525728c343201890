"""A router's picture of a cache, from the messages alone: it knows nothing of our types."""

from __future__ import annotations

import msgspec


class Mirror:
    """What a subscriber knows: blocks by (group, hash), and how they follow each other."""

    def __init__(self):
        self.blocks = {}  # (group, hash) → (group, parent, tokens, extra keys), by which it is found
        self.num_cleared = 0

    def read(self, batches):
        """Follow these encoded batches."""
        for batch in batches:
            seconds, events, rank = msgspec.msgpack.decode(batch)
            assert seconds > 0
            assert rank == 0
            for event in events:
                getattr(self, event.pop("type"))(**event)

    @property
    def known(self):
        return self.blocks.keys()

    def num_cached(self, token_ids, block_size, *, salt=""):
        """Return how many tokens of a prompt it takes to be cached, where one group sees everything."""
        found = {where: name for (_, name), where in self.blocks.items()}
        parent, start = None, 0
        while start + block_size < len(token_ids):  # the last token is always computed
            extra = (salt,) if salt and parent is None else None
            where = (0, parent, tuple(token_ids[start : start + block_size]), extra)
            if (parent := found.get(where)) is None:
                break
            start += block_size
        return start

    def BlockStored(  # noqa: N802
        self, *, block_hashes, parent_block_hash, token_ids, block_size, group_idx, extra_keys, medium, **_
    ):
        assert medium == "GPU"
        assert len(token_ids) == block_size * len(block_hashes) == block_size * len(extra_keys)
        parents = [parent_block_hash, *block_hashes]
        for index, name in enumerate(block_hashes):
            assert (group_idx, name) not in self.blocks, "stored twice"
            tokens = tuple(token_ids[index * block_size : (index + 1) * block_size])
            extra = extra_keys[index] and tuple(extra_keys[index])
            self.blocks[group_idx, name] = (group_idx, parents[index], tokens, extra)

    def BlockRemoved(self, *, block_hashes, medium, group_idx):  # noqa: N802
        assert medium == "GPU"
        for name in block_hashes:
            del self.blocks[group_idx, name]

    def AllBlocksCleared(self):  # noqa: N802
        self.blocks.clear()
        self.num_cleared += 1
