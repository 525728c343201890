"""What the ranks know of the sequences, so that each pass sends them only what is new."""

from __future__ import annotations

from dormouse_worker.engine.batch import BlockIds, Drafts, NewSequence, ScheduledSequence
from dormouse_worker.engine.block_tables import ABSENT
from dormouse_worker.engine.request import Request


class RankView:
    """Follows every batch that is sent. All ranks of a group know the same."""

    def __init__(self, block_size: int, num_groups: int = 1) -> None:
        self._block_size = block_size
        self._nothing_new: BlockIds = ([],) * num_groups
        self._num_blocks: dict[str, list[int]] = {}  # by sequence and layer group: blocks that the ranks know
        self._room: dict[str, int] = {}  # tokens that have their place in these
        self._released: list[str] = []
        self._is_fresh = True

    def __repr__(self) -> str:
        return f"RankView({len(self._num_blocks)} sequences, {len(self._released)} to release, fresh={self._is_fresh})"

    def introduce(self, request: Request) -> NewSequence | None:
        """Return the whole sequence if the ranks do not know it."""
        if request.request_id in self._num_blocks:
            return None
        self._num_blocks[request.request_id] = []
        outputs = list(request.output_token_ids)
        return NewSequence(
            request.request_id,
            request.prompt_token_ids,
            outputs,
            request.sampling,
            lora_slot=request.lora_slot,
            lora_start=request.lora_start,
            images=tuple(request.images),
            num_virtual_tokens=request.num_virtual_tokens - request.num_given_tokens,
            num_given_tokens=request.num_given_tokens,
            num_source_tokens=request.num_source_tokens,
        )

    def schedule(
        self, request: Request, table: BlockIds, end: int, drafts: Drafts = (), num_wanted: int = 0
    ) -> ScheduledSequence:
        """Return the part [computed, end) of a sequence that was introduced, and drafts behind it, with new blocks.

        So many more drafts are wanted for the pass after it.
        """
        new_block_ids = self._new_blocks(request.request_id, table)
        start, samples = request.num_computed_tokens, end == request.num_tokens
        end += len(drafts)
        return ScheduledSequence(request.request_id, start, end, new_block_ids, samples, drafts, num_wanted)

    def schedule_decode(self, request: Request, drafts: Drafts = (), num_wanted: int = 0) -> ScheduledSequence | None:
        """Return the one token that a decoding sequence has to compute, and drafts, if the ranks know all its blocks.

        Nearly always they do: a sequence gets a block only now and then. Then nothing else is to be looked at.
        """
        request_id, end = request.request_id, request.num_tokens
        start = request.num_computed_tokens
        if end - start != 1 or self._room.get(request_id, 0) < end + len(drafts) + num_wanted:
            return None
        end += len(drafts)
        return ScheduledSequence(request_id, start, end, self._nothing_new, True, drafts, num_wanted)  # noqa: FBT003

    def _new_blocks(self, request_id: str, table: BlockIds) -> BlockIds:
        known = self._num_blocks[request_id]
        now = [len(blocks) for blocks in table]
        if known == now:
            return self._nothing_new
        self._num_blocks[request_id] = now
        self._room[request_id] = min(now) * self._block_size
        return tuple(_present(blocks[start:]) for blocks, start in zip(table, known or [0] * len(now), strict=True))

    def release(self, request_id: str) -> None:
        """The ranks may forget this sequence; nothing happens if they do not know it."""
        self._room.pop(request_id, None)
        if self._num_blocks.pop(request_id, None) is not None:
            self._released.append(request_id)

    def reset(self) -> None:
        """Nobody knows what the ranks know: they shall forget everything."""
        self._num_blocks.clear()
        self._room.clear()
        self._released.clear()
        self._is_fresh = True

    def take_released(self) -> tuple[bool, tuple[str, ...]]:
        """Return whether the ranks shall forget everything, else what they may forget; say it only once."""
        told = self._is_fresh, tuple(self._released)
        self._is_fresh = False
        self._released.clear()
        return told


def _present(blocks: list[int]) -> list[int]:
    """Put block 0 where a window needs none: it keeps the table's positions and is never read."""
    return [0 if block == ABSENT else block for block in blocks]
