"""Which adapters there are, which lie in which slot, and who uses them. Pure; the ranks do what the moves say.

    known      what `add` has named; requests may ask for them, and count as references until they have ended
    slots      what the next passes can compute with; a running request keeps its adapter's slot
    moves      what the ranks have to copy into slots before the next pass

A request whose adapter lies in no slot takes the slot that was not used for longest and that nobody uses; pinned
adapters keep theirs. Where there is none it waits; `line` says who may overtake it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.errors import AdapterLimit, AdapterNotFound
from dormouse_worker.engine.batch import ScheduledSequence
from dormouse_worker.engine.invocation import BASE, Activation, activate
from dormouse_worker.engine.request import Request


class AdapterSlots:
    """Owns the slots and who holds them. Digests name adapters; "" is the base, which needs no slot."""

    def __init__(self, num_slots: int = 0) -> None:
        self._slots = [""] * num_slots
        self._used_at = [0] * num_slots
        self._clock = 0
        self._known: dict[str, AdapterInfo] = {}
        self._lost: dict[str, str] = {}
        self._pinned: set[str] = set()
        self._references: Counter[str] = Counter()  # unfinished requests
        self._holders: Counter[str] = Counter()  # of these, the running ones
        self._moves: dict[int, str] = {}
        self._leaving: set[str] = set()  # removed while requests needed them

    def __repr__(self) -> str:
        return f"AdapterSlots({len(self._known)} known, slots={self._slots}, holders={dict(self._holders)})"

    @property
    def pinned(self) -> frozenset[str]:
        """Return the adapters that keep their slots."""
        return frozenset(self._pinned)

    def note(self, known: Mapping[str, AdapterInfo], lost: Mapping[str, str]) -> None:
        """Take what the ranks have; those that are lost leave their slots."""
        self._known, self._lost = dict(known), dict(lost)
        self._pinned &= self._known.keys()
        self._leaving &= self._known.keys()
        self._slots = [digest if digest in self._known else "" for digest in self._slots]
        self._moves = {slot: digest for slot, digest in self._moves.items() if digest in self._known}

    def why_not(self, digest: str) -> str:
        """Return why no new request can have this adapter; "" = it can."""
        if not digest or (digest in self._known and digest not in self._leaving):
            return ""
        return self._lost.get(digest) or f"the adapter with the digest {digest[:12]} is not loaded"

    def activate(self, digest: str, prompt_token_ids: Sequence[int]) -> Activation:
        """Return from where on a prompt has an adapter of which nothing speaks against, if at all."""
        return activate(self._known[digest], prompt_token_ids) if digest else BASE

    def num_virtual_tokens(self, digest: str) -> int:
        """Return how many vectors an adapter, of which nothing speaks against, puts in front of a prompt."""
        return self._known[digest].num_virtual_tokens if digest else 0

    def has_keys(self, digest: str) -> bool:
        """Return whether these are keys and values, which no pass computes."""
        return bool(digest) and self._known[digest].has_keys

    def add(self, info: AdapterInfo) -> None:
        """Let requests ask for it, also where it was about to leave."""
        self._known[info.digest] = info
        self._lost.pop(info.digest, None)
        self._leaving.discard(info.digest)

    def bring(self, digest: str) -> None:
        """Have it copied with the next pass, not with the first that needs it; one at a time, where there is room."""
        if not self._moves and digest not in self._slots and (slot := self._victim()) is not None:
            self._fill(slot, digest)

    def remove(self, digest: str) -> None:
        """Let nobody ask for it any more; `take_unused` names it once no request needs it."""
        self._pinned.discard(digest)
        self._lost.pop(digest, None)
        if digest in self._known:
            self._leaving.add(digest)

    def take_unused(self) -> list[str]:
        """Return the removed adapters that nobody needs; they are forgotten."""
        unused = [digest for digest in self._leaving if not self._references[digest]]
        for digest in unused:
            self._leaving.discard(digest)
            del self._known[digest]
            self._slots = ["" if each == digest else each for each in self._slots]
            self._moves = {slot: each for slot, each in self._moves.items() if each != digest}
        return unused

    def pin(self, digest: str, *, is_pinned: bool) -> None:
        """Let it keep its slot once it has one, or no longer. Raises AdapterNotFound, AdapterLimit."""
        if not is_pinned:
            self._pinned.discard(digest)
            return
        if why := self.why_not(digest):
            raise AdapterNotFound(why)
        if len(self._pinned | {digest}) >= len(self._slots):
            raise AdapterLimit(
                f"{len(self._pinned)} adapters are pinned and max_loras is {len(self._slots)}: one slot stays free for "
                "the others"
            )
        self._pinned.add(digest)

    def begin(self, digest: str) -> None:
        """A request that asks for it came."""
        if digest:
            self._references[digest] += 1

    def end(self, digest: str) -> None:
        """The request has ended; it holds no slot any more."""
        if digest:
            self._references[digest] -= 1

    def has_room(self, digest: str) -> bool:
        """Return whether `hold` would find a slot."""
        return not digest or digest in self._slots or self._victim() is not None

    def hold(self, digest: str) -> int:
        """Give a request that begins to run its adapter's slot, which it keeps until `release`; -1 for the base."""
        if not digest:
            return -1
        slot = self._slots.index(digest) if digest in self._slots else self._victim()
        assert slot is not None, "`has_room` comes first"
        self._fill(slot, digest)
        self._holders[digest] += 1
        return slot

    def release(self, digest: str) -> None:
        """The request runs no longer; what it left in the slot stays until somebody needs it."""
        if digest:
            self._holders[digest] -= 1

    def line_up(self, sequences: list[ScheduledSequence], requests: Mapping[str, Request]) -> None:
        """Put sequences of one adapter beside each other: ranks read its weights once for all of them."""
        if self._holders.total():
            sequences.sort(key=lambda each: requests[each.request_id].lora_slot)

    def take_moves(self) -> tuple[tuple[int, str], ...]:
        """Return what the ranks have to copy before the next pass."""
        moves, self._moves = self._moves, {}
        return tuple(moves.items())

    def reset(self) -> None:
        """Nothing is known of what lies in the ranks' slots: what is held has to come again."""
        self._slots = [digest if self._holders[digest] else "" for digest in self._slots]
        self._moves = {slot: digest for slot, digest in enumerate(self._slots) if digest}

    def check_integrity(self, *, is_idle: bool) -> None:
        """Raise RuntimeError if an adapter lies twice, or somebody holds one when nothing runs."""
        resident = [digest for digest in self._slots if digest]
        held = {digest for digest, count in self._holders.items() if count}
        if len(set(resident)) < len(resident) or not held <= set(resident) or (is_idle and held):
            raise RuntimeError(f"{self!r}: slots and holders do not fit")

    def _fill(self, slot: int, digest: str) -> None:
        if self._slots[slot] != digest:
            self._slots[slot] = self._moves[slot] = digest
        self._clock += 1
        self._used_at[slot] = self._clock

    def _victim(self) -> int | None:
        """Return the slot to fill next: an empty one, else that of the adapter that was used longest ago."""
        free = [
            slot
            for slot, digest in enumerate(self._slots)
            if not digest or (not self._holders[digest] and digest not in self._pinned)
        ]
        return min(free, key=lambda slot: (bool(self._slots[slot]), self._used_at[slot]), default=None)
