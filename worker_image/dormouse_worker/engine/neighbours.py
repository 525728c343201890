"""Asks a store for blocks that others wrote while this engine runs. A thread asks; the request waits for it, shortly.

Whoever is alone with a store asks it once in `ALONE_S`, and others of nobody's: a chain of names is followed up to the
first that is not there, in parts that double, so that what was never said costs one look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from dormouse_worker.engine.prefix import BlockHash
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.sources import Source
from dormouse_worker.engine.store_threads import name_of
from dormouse_worker.kv_store.interface import BlockStore

ALONE_S = 1.0  # so long nobody asks again who found himself alone
LEAST_PATIENCE_S, MOST_PATIENCE_S = 0.05, 1.0
LEAST_PEER_PATIENCE_S, MOST_PEER_PATIENCE_S = 1.0, 10.0  # the first one is asked after a library was imported
NUM_PEERS_ASKED = 4  # at a time
SHARE = 0.1  # of what computing the blocks takes: so long a request waits for an answer
TURN_S = 0.001  # a new question is waited for before the next pass: a file system of this machine has answered then
MAX_PART = 64


class Question:
    """Whether blocks are there that one request begins with. Implements `Preparation`."""

    def __init__(
        self, request: Request, hashes: Sequence[BlockHash], num_groups: int, deadline_s: float, source: Source
    ) -> None:
        """`hashes` = in the order of their tokens; each group of layers has a block for each."""
        self.request = request
        self.source = source
        self.hashes = hashes
        self.num_groups = num_groups
        self.deadline_s = deadline_s
        self.num_found = 0
        self.is_given_up = False
        self._answered = threading.Event()

    def __repr__(self) -> str:
        return f"Question({self.request.request_id}, {len(self.hashes)} hashes, answered={self.is_answered})"

    @property
    def is_answered(self) -> bool:
        """Return whether the thread has come to its end."""
        return self._answered.is_set()

    def is_done(self, timeout_s: float = 0.0) -> bool:
        """See `Preparation`. The request is held until whoever asked has taken the answer, between two passes."""
        self.wait(timeout_s)
        return False

    def wait(self, timeout_s: float) -> None:
        """Return when it is answered, or after so long."""
        if timeout_s:
            self._answered.wait(timeout_s)

    def ask(self) -> None:
        """Let the store know what of it is there, up to the first tokens of which no layer is."""
        store = self.source.store
        try:
            for part in _parts(self.hashes):
                names = [[name_of((group, each)) for group in range(self.num_groups)] for each in part]
                self.num_found += store.look([name for group_names in names for name in group_names])
                if self.is_given_up or not all(any(map(store.has, group_names)) for group_names in names):
                    return
        finally:
            self._answered.set()


class Neighbours:
    """Owns the thread that asks, and the questions under way."""

    def __init__(self, store: BlockStore, num_groups: int, clock: Callable[[], float]) -> None:
        self._store = store
        self._own = Source(store)
        self._num_groups = num_groups
        self._clock = clock
        self._asker = ThreadPoolExecutor(1, "kv-store-asker")
        self._peer_asker = ThreadPoolExecutor(NUM_PEERS_ASKED, "kv-peer-asker")
        self._questions: dict[str, Question] = {}
        self._newest: Question | None = None  # asked since the last turn; answered last
        self._late: Question | None = None  # while the thread is in it nobody else asks
        self._alone_until_s = float("-inf")
        self._around: Future[bool] | None = None

    def __repr__(self) -> str:
        return f"Neighbours({len(self._questions)} questions)"

    @property
    def request_ids(self) -> Sequence[str]:
        """Return whose questions are under way."""
        return list(self._questions)

    @property
    def may_know_more(self) -> bool:
        """Return whether somebody may have written what is not known here."""
        is_stuck = self._late is not None and not self._late.is_answered
        return not is_stuck and self._clock() >= self._alone_until_s

    def ask(self, request: Request, hashes: Sequence[BlockHash], recompute_s: float) -> None:
        """Let the request wait until the store has said what of these, which take so long to compute, is there."""
        patience_s = min(MOST_PATIENCE_S, max(LEAST_PATIENCE_S, SHARE * recompute_s))
        question = self._begin(request, hashes, patience_s, self._own)
        self._newest = question
        self._asker.submit(self._ask, question)

    def ask_peer(self, request: Request, hashes: Sequence[BlockHash], recompute_s: float, source: Source) -> None:
        """The same of another worker, which may take as long as computing does; 0 = that is not known."""
        patience_s = min(MOST_PEER_PATIENCE_S, max(LEAST_PEER_PATIENCE_S, recompute_s or MOST_PEER_PATIENCE_S))
        self._peer_asker.submit(self._begin(request, hashes, patience_s, source).ask)

    def look_around(self) -> None:
        """Have the store asked whether there are others."""
        self._around = self._asker.submit(self._store.is_shared)

    def are_there(self, timeout_s: float = 0.0) -> bool:
        """Return whether there were others when it was last asked, if that is known within so long."""
        if self._around is not None and timeout_s:
            wait([self._around], timeout_s)
        return self._around is not None and self._around.done() and self._around.result()

    def cancel(self, request_ids: Iterable[str]) -> None:
        """These requests have ended."""
        for request_id in request_ids:
            if (question := self._questions.pop(request_id, None)) is not None:
                question.is_given_up = True
                question.source.close()
                question.request.restore = None

    def take_answered(self) -> Iterator[Question]:
        """Yield questions that are answered, or have taken too long; their requests wait no more."""
        if self._newest is not None:
            self._newest.wait(TURN_S)
            self._newest = None
        for request_id, question in list(self._questions.items()):
            is_late = self._clock() > question.deadline_s
            if not question.is_answered and not is_late:
                continue
            del self._questions[request_id]
            if not question.is_answered:
                question.is_given_up = True
                self._late = question if question.source.is_own else self._late
            question.request.restore = None
            yield question

    def _ask(self, question: Question) -> None:
        if not self._store.is_shared():
            self._alone_until_s = self._clock() + ALONE_S
        question.ask()

    def _begin(self, request: Request, hashes: Sequence[BlockHash], patience_s: float, source: Source) -> Question:
        question = Question(request, hashes, self._num_groups, self._clock() + patience_s, source)
        self._questions[request.request_id] = request.restore = question
        return question


def _parts(hashes: Sequence[BlockHash]) -> Iterator[Sequence[BlockHash]]:
    """Yield them in runs, each twice as long as the one before."""
    start, size = 0, 1
    while start < len(hashes):
        yield hashes[start : start + size]
        start, size = start + size, min(MAX_PART, 2 * size)
