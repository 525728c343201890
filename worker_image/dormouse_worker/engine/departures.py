"""Requests of which another worker decodes the rest: their blocks are written while their prompts are computed.

Each goes once it has answered and all its full blocks may be asked for; until then it goes on here, so that its caller
waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dormouse_worker.engine.block_pool import Key
from dormouse_worker.engine.block_tables import BlockTables
from dormouse_worker.engine.block_writer import HAND_OVER_S, BlockWriter
from dormouse_worker.engine.request import Request


class Departures:
    """Decides who goes. What is known of each request stands in it."""

    def __init__(self, tables: BlockTables, writer: BlockWriter, clock: Callable[[], float]) -> None:
        self._layout, self._pool = tables.layout, tables.pool
        self._writer, self._clock = writer, clock

    def turn(self, requests: Sequence[Request]) -> list[str]:
        """Have some more written, with no pass under way; return the ids of those that may go now."""
        room, blocks = self._writer.room_to_hand_on() if requests else 0, list[tuple[int, Key]]()
        for request in requests:
            blocks += self._next_blocks(request, room - len(blocks))
        if blocks:
            self._writer.write_some(blocks)
        return [request.request_id for request in requests if request.has_answered and self._may_go(request)]

    def _next_blocks(self, request: Request, room: int) -> list[tuple[int, Key]]:
        """Return at most so many of its next blocks that the store lacks; what the cache lacks, too, is left."""
        blocks: list[tuple[int, Key]] = []
        keys = self._keys(request)
        while request.num_handed_blocks < len(keys) and len(blocks) < room:
            key = keys[request.num_handed_blocks]
            request.num_handed_blocks += 1
            block = self._pool.find(key)
            if block is not None and not self._writer.is_kept(key):
                blocks.append((block, key))
        return blocks

    def _may_go(self, request: Request) -> bool:
        if request.departs_by_s is None:
            request.departs_by_s = self._clock() + HAND_OVER_S
        if self._clock() >= request.departs_by_s:
            return True
        keys = self._keys(request)
        return request.num_handed_blocks >= len(keys) and not any(map(self._writer.is_writing, keys))

    def _keys(self, request: Request) -> list[Key]:
        """Return the names of its full blocks that are computed, in token order; each group of layers has one."""
        num_tokens, size = request.num_computed_tokens, self._layout.block_size
        hashes = request.block_hashes(num_tokens, size)[: num_tokens // size]
        return [(group, each) for each in hashes for group in range(len(self._layout.windows))]
