"""How a group falls asleep and wakes as one: where one rank refuses, the others go back to where they were."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from dormouse_worker.common.commands import LIGHTEST, TAGS
from dormouse_worker.common.errors import Damaged, InsufficientMemory
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.executor.ranks import agreement
from dormouse_worker.executor.ranks.agreement import to_error
from dormouse_worker.executor.ranks.messages import Answer
from dormouse_worker.executor.ranks.orders import Orders, decode_value

logger = logging.getLogger(__name__)


class GroupSleep:
    """Owns what sleeps in all ranks, and how deeply: a wake that fails goes back there."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._level = 0
        self._asleep: frozenset[str] = frozenset()  # tags

    def __repr__(self) -> str:
        return f"GroupSleep(level={self._level}, tags={sorted(self._asleep)})"

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int]) -> SleepReport:
        """See `Executor`. Where one rank refuses, those that sleep are woken again."""
        replies = self._orders.group.call("sleep", level, list(tags), list(kept_blocks))
        if replies.failed:
            newly = [tag for tag in TAGS if tag in tags and tag not in self._asleep]
            self._orders.take_back(replies, "undo_sleep", newly)
        self._level, self._asleep = max(level, self._level), self._asleep | set(tags)
        return agreement.group_sleep(self._orders.values(replies, SleepReport).values())

    def prepare(self, tags: Collection[str]) -> int:
        """See `Executor`. Reserved on every rank or on none; returns what the rank lacks that lacks most."""
        replies = self._orders.group.call("prepare_wake_up", list(tags))
        if replies.failed:
            self._orders.take_back(replies, "sleep", LIGHTEST, list(tags))
        missing = {rank: decode_value(answer, int) for rank, answer in replies.answers.items()}
        lacking = {rank: num_bytes for rank, num_bytes in missing.items() if num_bytes}
        if lacking:
            logger.warning("the wake lacks %s bytes by rank", lacking)
            self._orders.undo(tuple(missing.keys() - lacking.keys()), "sleep", LIGHTEST, list(tags))
        return max(missing.values())

    def wake(self, tags: Collection[str]) -> WakeReport:
        """See `Executor`. In two phases; where one rank refuses in the second one, the others sleep again."""
        missing_bytes = self.prepare(tags)
        if missing_bytes:
            raise InsufficientMemory(f"a rank lacks {missing_bytes} bytes for the wake; all sleep as before")
        replies = self._orders.group.call("wake_up", list(tags))
        if any(_is_damaged(answer) for answer in replies.answers.values()):
            self._orders.undo(replies.done, "shutdown")
            self._orders.raise_failed(replies)
        if replies.failed:
            self._orders.take_back(replies, "sleep", self._level, list(tags))
        self._asleep -= set(tags)
        self._level = self._level if self._asleep else 0
        return agreement.group_wake(self._orders.values(replies, WakeReport).values())


def _is_damaged(answer: Answer) -> bool:
    return bool(answer.error) and isinstance(to_error("", answer), Damaged)
