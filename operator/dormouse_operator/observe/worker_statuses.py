"""What workers say of themselves: asked one by one, or told by those that are on their way to another state.

`FollowedStatuses` opens a stream to every worker that is asked and ends it when the worker has settled, so that a
change is known at once, nobody polls, and no connection stays open to a worker where nothing happens. No stream
tells of requests that come and end: whoever takes requests is asked each time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from dormouse_kube.reflector import Backoff
from dormouse_operator.act.workers import STATUS_TIMEOUT_S, WorkerControl
from dormouse_operator.errors import CredentialRefused, WorkerError
from dormouse_operator.model import AWAKE, AnyKey, Pod, Worker


class Unwelcome(str):
    """Why a worker gives no answer: it does not take us for its operator."""

    __slots__ = ()


Answer = Worker | str  # a str says why there is none


class Statuses(Protocol):
    """The answers of workers. Nothing here raises: a worker that does not answer is an observation."""

    async def ask(self, key: AnyKey, pod: Pod) -> Answer:
        """Return what the pod's worker says, or why it says nothing."""
        ...

    def follow(self, key: AnyKey, pod_uids: Collection[str]) -> bool:
        """Go on to hear of these pods of a deployment, and of no others; return whether changes are told."""
        ...

    def refresh(self, key: AnyKey) -> None:
        """Note that the deployment's workers were given commands: what they said before counts no more."""
        ...


class AskedStatuses:
    """Statuses of which each is asked for anew."""

    def __init__(self, workers: WorkerControl) -> None:
        """Take whom to ask."""
        self._workers = workers

    async def ask(self, key: AnyKey, pod: Pod) -> Answer:
        """See Statuses."""
        del key  # nothing is kept
        return await _ask(self._workers, pod)

    def follow(self, key: AnyKey, pod_uids: Collection[str]) -> bool:
        """See Statuses."""
        del key, pod_uids  # nothing is kept
        return False

    def refresh(self, key: AnyKey) -> None:
        """See Statuses."""


@dataclass(slots=True)
class _Follower:
    """One worker that was asked, and is listened to while there is a task."""

    pod: Pod
    answer: Answer = "it has not answered yet"
    is_stale: bool = True  # ask before the answer is used
    num_told: int = 0  # how often its stream told something new
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class FollowedStatuses:
    """Statuses that are told as they change; `mark` hears of every change."""

    workers: WorkerControl
    mark: Callable[[AnyKey], None]
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.1, max_s=2.0))
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    _followers: dict[AnyKey, dict[str, _Follower]] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Show how many workers are followed."""
        return f"FollowedStatuses({sum(len(followers) for followers in self._followers.values())} followed)"

    async def ask(self, key: AnyKey, pod: Pod) -> Answer:
        """See Statuses. What the stream told last counts, unless it may be out of date."""
        follower = self._followers.setdefault(key, {}).setdefault(pod.uid, _Follower(pod))
        if follower.task and follower.task.done():  # it met something that nobody foresaw: begin anew
            follower.task, follower.is_stale = None, True
        if follower.is_stale or _takes_requests(follower.answer):
            follower.is_stale, num_told = False, follower.num_told
            follower.answer = await _ask(self.workers, pod)
            follower.is_stale = follower.is_stale or follower.num_told != num_told  # which came last is not known
        return follower.answer

    def follow(self, key: AnyKey, pod_uids: Collection[str]) -> bool:
        """See Statuses."""
        followers = self._followers.get(key, {})
        for uid in [uid for uid in followers if uid not in pod_uids]:
            _end(followers.pop(uid))
        for follower in followers.values():
            if follower.task is None:
                listening = self._listen(key, follower.pod, follower)
                follower.task = asyncio.create_task(listening, name=f"follow {follower.pod.name}")
        if not followers:
            self._followers.pop(key, None)
        return True

    def refresh(self, key: AnyKey) -> None:
        """See Statuses."""
        for follower in self._followers.get(key, {}).values():
            follower.is_stale = True

    async def close(self) -> None:
        """End every stream."""
        tasks = [follower.task for followers in self._followers.values() for follower in followers.values()]
        for key in list(self._followers):
            self.follow(key, ())
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)

    async def _listen(self, key: AnyKey, pod: Pod, follower: _Follower) -> None:
        """Take in what the worker tells; when the stream breaks, ask, pause a little longer each time, and try anew."""
        failures = 0
        while True:
            with suppress(WorkerError):
                async for worker in self.workers.watch_status(pod):
                    failures = 0
                    self._note(key, follower, worker)
            failures += 1
            await self.sleep(self.backoff.delay_s(failures, self.rng))
            self._note(key, follower, await _ask(self.workers, pod))

    def _note(self, key: AnyKey, follower: _Follower, answer: Answer) -> None:
        if answer != follower.answer:
            follower.answer = answer
            follower.num_told += 1
            self.mark(key)


async def _ask(workers: WorkerControl, pod: Pod) -> Answer:
    try:
        async with asyncio.timeout(2 * STATUS_TIMEOUT_S):
            return await workers.get_status(pod)
    except CredentialRefused as error:
        return Unwelcome(error)
    except (WorkerError, TimeoutError) as error:
        return str(error) or "it does not answer in time"


def _takes_requests(answer: Answer) -> bool:
    """Return whether a worker's counts of requests may change, of which no stream tells."""
    return isinstance(answer, Worker) and answer.state in AWAKE


def _end(follower: _Follower) -> None:
    if follower.task:
        follower.task.cancel()
