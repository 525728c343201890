"""Gives a sequence its blocks, on the device or in host memory, and takes them back. Knows no line."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.engine.block_tables import BlockTables, Prefix, Shortage
from dormouse_worker.engine.forward_pass import Counters, Pass
from dormouse_worker.engine.prefix import BlockHash
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.swap import SwapSpace

MUST_WAIT = Shortage(generation=-1, next_hash=None)  # for an image, or for a pass with room for all of its source


class Placement:
    """Owns the device's block tables and the host's blocks: a sequence has its blocks in one of the two, or none."""

    def __init__(self, tables: BlockTables, swap: SwapSpace, counters: Counters, *, caches_prefixes: bool) -> None:
        """`counters` is told what happens."""
        self.tables = tables
        self.swap = swap
        self._counters = counters
        self._caches_prefixes = caches_prefixes

    def __repr__(self) -> str:
        return f"{self.tables!r}, {self.swap!r}"

    def admit(self, request: Request, current: Pass) -> Shortage | None:
        """Give a waiting sequence its blocks, or say why not: from host memory, or beginning with a known prefix."""
        if request.request_id in self.swap:
            return self._swap_in(request, current)
        prefix = self.find_prefix(request)
        request.num_computed_tokens = max(prefix.num_tokens, request.num_given_tokens)
        end = current.end_of(request)
        if end == request.num_computed_tokens:
            request.num_computed_tokens = 0
            return MUST_WAIT
        if not self.tables.admit(request.request_id, prefix, request.num_tokens, end):
            request.num_computed_tokens = 0
            return self.tables.shortage(prefix)
        if request.first_scheduled_s is None:
            most = request.num_source_tokens or request.num_prompt_tokens
            request.num_cached_tokens = min(prefix.num_tokens, most)
            self._counters.prefix_queries += request.num_tokens
            self._counters.prefix_hits += prefix.num_tokens
            self._count_images(request, current)
        return None

    def preempt(self, request: Request) -> None:
        """Take a running sequence's blocks: copied to host memory if there is room, else it is computed anew."""
        table = self.tables.table(request.request_id)
        self._counters.preemptions += 1
        if request.num_computed_tokens and self.swap.has_room(table):
            self.swap.take(request.request_id, table)
            self._counters.swaps += 1
        else:
            request.start_over()
        self.tables.free(request.request_id)

    def free(self, request_id: str) -> None:
        """Take all blocks of a sequence, wherever they are; nothing happens if it has none."""
        self.tables.free(request_id)
        self.swap.drop(request_id)

    def forget(self, waiting: Sequence[Request]) -> None:
        """Nobody knows what the blocks hold: forget prefixes, and let those in host memory be computed anew."""
        self.tables.pool.forget_prefixes()  # some are of blocks that were to be computed
        for request in waiting:
            if request.request_id in self.swap:  # perhaps never copied
                self.swap.drop(request.request_id)
                request.start_over()
        self.swap.moves_out()  # are not made

    def name(self, request: Request, end: int) -> None:
        """Name the full blocks of the tokens [0, end), as far as they are known: others may share them."""
        num_named = min(end, request.num_known_tokens)
        self.tables.name(request.request_id, self._hashes(request, num_named), num_named, request)

    def commit(self, request: Request, end: int) -> None:
        """The tokens [0, end) are in the cache."""
        self.tables.commit(request.request_id, self._hashes(request, end), end, request)

    def find_prefix(self, request: Request) -> Prefix:
        """Return what of the sequence is known; its last token is always computed, for its logits.

        Of a source that an encoder reads, all or nothing.
        """
        hashes = () if request.wants_prompt_logprobs else self._hashes(request, request.num_tokens - 1)
        prefix = self.tables.find_prefix(hashes, request.num_tokens - 1)
        is_whole = prefix.num_tokens >= request.source_end
        return prefix if is_whole else self.tables.find_prefix((), request.num_tokens - 1)

    def check_integrity(self, *, is_idle: bool) -> None:
        """Recount all blocks; where it is idle none may be held. Raises RuntimeError with the numbers."""
        self.tables.check_integrity()
        self.swap.check_integrity()
        num_held = self.tables.pool.num_used + self.swap.num_blocks - self.swap.num_free
        if is_idle and num_held:
            raise RuntimeError(f"{num_held} blocks are held though no request is left: {self!r}")

    def _count_images(self, request: Request, current: Pass) -> None:
        covered = request.num_computed_tokens
        self._counters.image_queries += len(request.images)
        self._counters.image_hits += sum(
            image.end <= covered
            or (current.images.cache.holds(image.digest) and image.digest not in request.encoded_ahead)
            for image in request.images
        )

    def _swap_in(self, request: Request, current: Pass) -> Shortage | None:
        if current.end_of(request) == request.num_computed_tokens:
            return MUST_WAIT
        shape = self.swap.shape(request.request_id)
        table = self.tables.restore(request.request_id, shape, request.num_tokens, current.end_of(request))
        if table is None:
            return self.tables.shortage()
        current.swap_in += self.swap.give(request.request_id, table)
        return None

    def _hashes(self, request: Request, num_tokens: int) -> Sequence[BlockHash]:
        if not self._caches_prefixes:
            return ()
        return request.block_hashes(num_tokens, self.tables.layout.block_size)
