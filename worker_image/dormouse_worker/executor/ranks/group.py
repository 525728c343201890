"""All ranks of a group as their leader drives them: orders to all at once, answers from all, and one fate.

A rank that ends, gives no sign of life or leaves an order unanswered breaks the group; so does one that fails where
others succeed in what they only can do together. Nothing here waits longer than its deadline.
"""

from __future__ import annotations

import itertools
import selectors
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dormouse_worker.common.errors import RankHung, RankLost
from dormouse_worker.engine.batch import Batch, SampledToken
from dormouse_worker.executor.ranks.connection import RankConnection
from dormouse_worker.executor.ranks.listener import Children
from dormouse_worker.executor.ranks.messages import Answer, Call, Step, encode

ERROR_GRACE_S = 5.0  # what the others get to answer once one has failed: they may wait for it in a collective for ever
LOOK_PERIOD_S = 1.0  # between two looks for signs of life


@dataclass(frozen=True, slots=True)
class Replies:
    """What became of one order."""

    answers: Mapping[int, Answer]  # by rank
    silent: tuple[int, ...] = ()  # who did not answer, only ever beside one that failed

    @property
    def failed(self) -> dict[int, Answer]:
        """Return the errors by rank."""
        return {rank: answer for rank, answer in self.answers.items() if answer.error}

    @property
    def done(self) -> tuple[int, ...]:
        """Return who carried it out."""
        return tuple(rank for rank, answer in self.answers.items() if not answer.error)


class RankGroup:
    """Owns the connections and the orders under way."""

    def __init__(
        self,
        connections: Mapping[int, RankConnection],
        children: Children,
        clock: Callable[[], float],
        *,
        rank_timeout_s: float,
    ) -> None:
        self._connections = connections
        self._children = children
        self._clock = clock
        self._rank_timeout_s = rank_timeout_s
        self._call_ids = itertools.count(1)
        self._answers: dict[tuple[int, int], Answer] = {}  # by order and rank, until they are collected
        self._selector = selectors.DefaultSelector()
        for connection in connections.values():
            self._selector.register(connection, selectors.EVENT_READ)

    def __repr__(self) -> str:
        return f"RankGroup({len(self._connections)} ranks, {len(self._answers)} answers not collected)"

    @property
    def pods(self) -> dict[int, str]:
        """Return by rank the pod in which it runs."""
        return {rank: connection.pod for rank, connection in self._connections.items()}

    def name(self, rank: int) -> str:
        """Return who a rank is, for people."""
        return self._connections[rank].name

    def call(self, method: str, *args: Any, ranks: tuple[int, ...] | None = None, **kwargs: Any) -> Replies:
        """Have ranks (default: all) call a method of their workers, and wait as long as they show signs of life."""
        asked = tuple(self._connections) if ranks is None else ranks
        return self._collect(self._send(asked, method, args, kwargs), asked, timeout_s=None)

    def send_each(self, method: str, *args: Any, ranks: Collection[int]) -> int:
        """Have ranks do what none needs the others for; return what to collect."""
        return self._send(tuple(ranks), method, args, {})

    def collect_each(self, call_id: int, ranks: Collection[int], timeout_s: float) -> Replies | None:
        """Wait so long for the answers of all these ranks, also where one failed; None = ask again. Raises RankLost."""
        deadline_s = self._clock() + timeout_s
        self._pump(0.0)
        while any((call_id, rank) not in self._answers for rank in ranks):
            now_s = self._clock()
            if now_s >= deadline_s:
                return None
            self._pump(self._until_next_look_s(now_s, deadline_s))
            self._check_beats()
        return Replies({rank: self._answers.pop((call_id, rank)) for rank in ranks})

    def _send(self, asked: tuple[int, ...], method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        call_id = next(self._call_ids)
        frame = encode(Call(call_id, method, list(args), kwargs))
        for rank in asked:
            self._connections[rank].send(frame)
        return call_id

    def send_step(self, batch: Batch, sampled: list[SampledToken]) -> int:
        """Have all ranks compute a batch, and hear of tokens that earlier batches gave; return what to collect."""
        call_id = next(self._call_ids)
        frame = encode(Step(call_id, batch, sampled))
        for connection in self._connections.values():
            connection.send(frame)
        return call_id

    def collect_step(self, call_id: int) -> Replies:
        """Wait for all ranks' answers to a batch. Once for each, in the order of sending. Raises RankLost, RankHung."""
        return self._collect(call_id, tuple(self._connections), timeout_s=self._rank_timeout_s)

    def check_alive(self) -> None:
        """Take what has arrived. Raises RankLost, or RankHung naming who was silent for too long."""
        self._pump(0.0)
        self._check_beats()

    def close(self) -> None:
        """Hang up on all of them: they end."""
        self._selector.close()
        for connection in self._connections.values():
            connection.close()

    def _check_beats(self) -> None:
        now_s = self._clock()
        silent = [c.name for c in self._connections.values() if now_s - c.heard_s > self._rank_timeout_s]
        if silent:
            raise RankHung(
                f"{', '.join(silent)}: no sign of life for {self._rank_timeout_s:g} s (--rank-timeout); "
                "it is stopped, or its machine is gone"
            )

    def _collect(self, call_id: int, ranks: tuple[int, ...], *, timeout_s: float | None) -> Replies:
        """Wait until all have answered, or one has failed and the others had their grace."""
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        failed_s: float | None = None
        while missing := [rank for rank in ranks if (call_id, rank) not in self._answers]:
            now_s = self._clock()
            if failed_s is None and any(self._answers[call_id, rank].error for rank in ranks if rank not in missing):
                failed_s = now_s
            if failed_s is not None and now_s - failed_s >= ERROR_GRACE_S:
                break
            if deadline_s is not None and now_s >= deadline_s:
                raise RankHung(self._why_late(missing, timeout_s))
            self._pump(
                self._until_next_look_s(now_s, deadline_s, None if failed_s is None else failed_s + ERROR_GRACE_S)
            )
            self._check_beats()
        answers = {rank: self._answers.pop((call_id, rank)) for rank in ranks if rank not in missing}
        return Replies(answers, tuple(missing))

    @staticmethod
    def _until_next_look_s(now_s: float, *deadlines_s: float | None) -> float:
        limits = [deadline_s - now_s for deadline_s in deadlines_s if deadline_s is not None]
        return max(0.0, min((LOOK_PERIOD_S, *limits)))

    def _why_late(self, missing: list[int], timeout_s: float | None) -> str:
        names = ", ".join(self.name(rank) for rank in missing)
        return f"{names}: no answer to a batch within {timeout_s} s (--rank-timeout)"

    def _pump(self, timeout_s: float) -> None:
        """Write what waits, read what comes. Raises RankLost, RankHung."""
        for connection in self._connections.values():
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_to_write else 0)
            if self._selector.get_key(connection).events != events:
                self._selector.modify(connection, events)
        for key, _ in self._selector.select(timeout_s):
            assert isinstance(key.fileobj, RankConnection), "nothing else is registered"
            key.fileobj.flush()
            self._take(key.fileobj)
        for connection in self._connections.values():
            if connection.has_ended:
                self._check_beats()  # whoever was silent for too long may have been killed for that
                self._children.check()  # who knows how it ended
                raise RankLost(f"{connection.name}: its process ended, or the connection to it")

    def _take(self, connection: RankConnection) -> None:
        rank = next(rank for rank, known in self._connections.items() if known is connection)
        for message in connection.receive():
            if isinstance(message, Answer):
                self._answers[message.call_id, rank] = message
