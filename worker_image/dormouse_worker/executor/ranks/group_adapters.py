"""The adapters of a group: each rank reads what is its own, and all have an adapter or none has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.errors import AdapterInvalid, WorkerError
from dormouse_worker.executor.ranks.agreement import RankFailed
from dormouse_worker.executor.ranks.group import Replies
from dormouse_worker.executor.ranks.messages import Answer
from dormouse_worker.executor.ranks.orders import Orders


@dataclass(slots=True)
class _Coming:
    """What ranks read now, each at its own pace."""

    asked: tuple[str, str]  # path and digest
    answers: dict[int, Answer] = field(default_factory=dict)  # of those that are done, or failed
    call_id: int | None = None  # under way


class GroupAdapters:
    """Owns which adapters all ranks have: what only some could load is taken back from them."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._digests: set[str] = set()
        self._coming: _Coming | None = None

    def __repr__(self) -> str:
        return f"GroupAdapters({len(self._digests)} adapters)"

    def add(self, path: str, digest: str = "", seconds: float = math.inf) -> AdapterInfo | None:
        """See `Executor.add_lora`. Pods may have other files under one path: their digests are compared."""
        if self._coming is None:
            self._coming = _Coming((path, digest))
        assert self._coming.asked == (path, digest), "one that is begun is asked for until it is done"
        if not self._advance(self._coming, seconds):
            return None
        replies, self._coming = Replies(self._coming.answers), None
        return self._take(path, replies)

    def _advance(self, coming: _Coming, seconds: float) -> bool:
        """Have each rank that is not done read for so long; return whether all are. Steps may be sent in between."""
        group = self._orders.group
        reading = [rank for rank in group.pods if rank not in coming.answers]
        if coming.call_id is None:
            coming.call_id = group.send_each("add_lora", *coming.asked, seconds, ranks=reading)
        if (replies := group.collect_each(coming.call_id, reading, seconds)) is None:
            return False
        coming.call_id = None
        coming.answers |= {rank: answer for rank, answer in replies.answers.items() if answer.error or _info(answer)}
        return len(coming.answers) == len(group.pods)

    def _take(self, path: str, replies: Replies) -> AdapterInfo:
        """Return what all ranks have now, or take it back from those that have it."""
        loaded = {rank: info for rank in replies.done if (info := _info(replies.answers[rank]))}
        try:
            self._orders.raise_failed(replies)
            info = self._agreed(path, loaded)
        except (WorkerError, RankFailed):
            for rank, each in loaded.items():
                if each.digest not in self._digests:
                    self._orders.undo((rank,), "remove_lora", each.digest)
            raise
        self._digests.add(info.digest)
        return info

    def remove(self, digest: str) -> None:
        """See `Executor.remove_lora`."""
        self._digests.discard(digest)
        self._orders.require("remove_lora", digest)

    def list(self) -> AdapterList:
        """See `Executor.list_loras`. What one rank has lost is lost to all."""
        lists = self._orders.values(self._orders.require("list_loras"), AdapterList)
        lost = {digest: f"{name}: {why}" for name, known in lists.items() for digest, why in known.lost.items()}
        by_digest: dict[str, list[AdapterInfo]] = {}
        for known in lists.values():
            for info in known.loaded:
                by_digest.setdefault(info.digest, []).append(info)
        whole = [_sum(infos) for digest, infos in by_digest.items() if digest not in lost]
        return AdapterList(whole, lost)

    def _agreed(self, path: str, loaded: Mapping[int, AdapterInfo]) -> AdapterInfo:
        """Return what all ranks have loaded. Raises AdapterInvalid where it is not one adapter."""
        (first, expected), *others = loaded.items()
        for rank, info in others:
            if info.digest != expected.digest:
                names = self._orders.group.name
                raise AdapterInvalid(
                    f"{path}: its digest is {info.digest} on {names(rank)}, {expected.digest} on {names(first)}; give "
                    "all pods the same files"
                )
        return _sum(list(loaded.values()))


def _info(answer: Answer) -> AdapterInfo | None:
    """Return what a rank has loaded; None = it still reads."""
    info: AdapterInfo | None = msgspec.msgpack.decode(answer.value, type=AdapterInfo | None)
    return info


def _sum(infos: list[AdapterInfo]) -> AdapterInfo:
    """Return what ranks with a part each have together."""
    return msgspec.structs.replace(infos[0], num_bytes=sum(info.num_bytes for info in infos))
