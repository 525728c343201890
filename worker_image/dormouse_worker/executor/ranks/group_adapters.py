"""The adapters of a group: each rank reads what is its own, and all have an adapter or none has."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.errors import AdapterInvalid, WorkerError
from dormouse_worker.executor.ranks.agreement import RankFailed
from dormouse_worker.executor.ranks.orders import Orders


class GroupAdapters:
    """Owns which adapters all ranks have: what only some could load is taken back from them."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._digests: set[str] = set()

    def __repr__(self) -> str:
        return f"GroupAdapters({len(self._digests)} adapters)"

    def add(self, path: str, digest: str) -> AdapterInfo:
        """See `Executor.add_lora`. Pods may have other files under one path: their digests are compared."""
        replies = self._orders.group.call_each("add_lora", path, digest)
        done = {rank: replies.answers[rank] for rank in replies.done}
        loaded = {rank: msgspec.msgpack.decode(answer.value, type=AdapterInfo) for rank, answer in done.items()}
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


def _sum(infos: list[AdapterInfo]) -> AdapterInfo:
    """Return what ranks with a part each have together."""
    return msgspec.structs.replace(infos[0], num_bytes=sum(info.num_bytes for info in infos))
