"""Orders that all ranks of a group carry out, or none does: what some did is taken back. Errors name ranks."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from dormouse_worker.common.errors import RanksDisagree
from dormouse_worker.executor.ranks.agreement import by_name, culprit, to_error
from dormouse_worker.executor.ranks.group import RankGroup, Replies
from dormouse_worker.executor.ranks.messages import Answer

T = TypeVar("T")


class Orders:
    """Knows what to make of a group's replies."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group

    def __repr__(self) -> str:
        return f"Orders({self.group!r})"

    def require(self, method: str, *args: Any) -> Replies:
        """Have all ranks carry out a command; raise the error of the first that failed."""
        replies = self.group.call(method, *args)
        self.raise_failed(replies)
        return replies

    def raise_failed(self, replies: Replies) -> None:
        """Raise what the rank said that failed first, if one did."""
        if replies.failed:
            rank = culprit(replies.failed)
            raise to_error(self.group.name(rank), replies.failed[rank])

    def take_back(self, replies: Replies, method: str, *args: Any) -> None:
        """Undo what some ranks did and others refused, then raise what these said."""
        if replies.silent:
            raise self.out_of_step(replies)
        self.undo(replies.done, method, *args)
        self.raise_failed(replies)

    def undo(self, ranks: tuple[int, ...], method: str, *args: Any) -> None:
        """Have these ranks go back. Raises RanksDisagree if one cannot: nobody knows then what is awake."""
        if not ranks:
            return
        for rank, answer in self.group.call(method, *args, ranks=ranks).failed.items():
            name = self.group.name(rank)
            raise RanksDisagree(f"{name}: cannot go back by {method}: {answer.error}: {answer.message}")

    def out_of_step(self, replies: Replies) -> RanksDisagree:
        """Return the error of a group of which only some went on."""
        rank = culprit(replies.failed)
        answer = replies.failed[rank]
        others = "others succeeded" if replies.done else "others wait for it"
        return RanksDisagree(f"{self.group.name(rank)}: {answer.error}: {answer.message}; {others}")

    def values(self, replies: Replies, kind: type[T]) -> dict[str, T]:
        """Return what each rank answered, by its name."""
        return by_name(replies.answers, self.group.name, kind)


def decode_value(answer: Answer, kind: type[T]) -> T:
    """Return what a rank answered."""
    return msgspec.msgpack.decode(answer.value, type=kind)
