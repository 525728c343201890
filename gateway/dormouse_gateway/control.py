"""`dormouse.v1.GatewayControl`: tells the operator what goes on, and asks it about limits. Owns but its streams."""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import gateway_control_pb2 as pb
from dormouse_api.v1 import gateway_control_pb2_grpc as rpc
from dormouse_gateway.activity import Activity, ActivityLog, Changes
from dormouse_gateway.clients.counting import Counting
from dormouse_kube.reflector import ObjectKey

HEARTBEAT_S = 5.0  # an operator that hears nothing for longer takes the gateway for lost
INTERVAL_S = 0.5  # between two updates: what changes in between is told together
MOST_EARLY = 4  # updates in a row that did not wait for that, as something was pressing; one more with each interval
MAX_STREAMS = 8  # the operators of an upgrade and some people looking
_MAX_ACTIVITIES = 1000  # in one message: about 200 KiB, where 1 MiB is allowed
_RETRY_AFTER_S = 5.0


class GatewayControl(rpc.GatewayControlServicer):
    """Serves the activity of all deployments."""

    def __init__(
        self,
        log: ActivityLog,
        counting: Counting | None = None,
        *,
        is_synced: Callable[[], bool],
        heartbeat_s: float = HEARTBEAT_S,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """Take the log, and whether it holds every deployment by now; and what keys used here."""
        self._log = log
        self._counting = counting or Counting()
        self._is_synced = is_synced
        self._heartbeat_s = heartbeat_s
        self._sleep = sleep
        self._num_streams = 0
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        """Show how many listen."""
        return f"GatewayControl({self._num_streams} streams, {self._log!r})"

    def close(self) -> None:
        """End all streams soon: the gateway has no requests any more."""
        self._closed.set()
        self._counting.leave()

    async def WatchActivity(self, request: pb.WatchActivityRequest, context: Any) -> AsyncIterator[pb.ActivityUpdate]:
        """Stream all activity and then the changes. Ends with the gateway."""
        del request  # it holds nothing
        if self._num_streams >= MAX_STREAMS:
            words = f"{self._num_streams} streams of WatchActivity are open already; the limit is {MAX_STREAMS}"
            error = CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, words, _RETRY_AFTER_S)
            await context.abort_with_status(to_grpc_status(error))
        self._num_streams += 1
        try:
            with self._log.reader() as changes:
                async for update in self._updates(changes):
                    yield update
        finally:
            self._num_streams -= 1

    async def ShareLimits(
        self, answers: AsyncIterator[pb.LimitAnswers], context: Any
    ) -> AsyncIterator[pb.LimitQuestions]:
        """Ask the operator that called last what keys may use. Ends with the gateway, or when another one calls."""
        del context
        hearing = asyncio.create_task(self._hear(answers))
        try:
            async for questions in self._counting.questions(hearing.done):
                yield questions
        finally:
            hearing.cancel()

    async def _hear(self, answers: AsyncIterator[pb.LimitAnswers]) -> None:
        async for answer in answers:
            self._counting.answer(answer)

    async def _updates(self, changes: Changes) -> AsyncIterator[pb.ActivityUpdate]:
        is_complete, haste = False, _Haste(self._log.now_s)
        while not self._closed.is_set():
            is_synced = self._is_synced()  # before the changes are taken: all that was known then is told
            keys, are_all = changes.take(_MAX_ACTIVITIES)
            is_complete = is_complete or (is_synced and are_all)
            yield self._update(keys, is_complete=is_complete)
            if are_all:
                await self._until_next(changes, haste)

    async def _until_next(self, changes: Changes, haste: _Haste) -> None:
        """Wait out the interval, then for a change or the time of the heartbeat.

        What is pressing cuts it short, but not ever so often: callers must not decide how much is sent.
        """
        pressing = (changes.wait_pressing(),) if haste.may_be_early(self._log.now_s) else ()
        if await self._race(self._sleep(INTERVAL_S), *pressing):
            haste.was_early()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._heartbeat_s - INTERVAL_S):
                await self._race(changes.wait())

    async def _race(self, awaited: Awaitable[Any], *others: Awaitable[Any]) -> bool:
        """Wait for any of them, or for the end; return whether the first was not the one that came about."""
        tasks = [asyncio.ensure_future(each) for each in (awaited, *others, self._closed.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return not tasks[0].done()
        finally:
            for task in tasks:
                task.cancel()

    def _update(self, keys: Sequence[ObjectKey], *, is_complete: bool) -> pb.ActivityUpdate:
        update, now_s = pb.ActivityUpdate(is_complete=is_complete), self._log.now_s
        for key in keys:
            activity = self._log.activity(key)
            if activity is None:
                update.removed.add(namespace=key.namespace, name=key.name)
            else:
                update.activities.append(_to_message(key, activity, now_s))
        return update


class _Haste:
    """How many updates of one stream may still be early: MOST_EARLY after a quiet time, then one an interval."""

    def __init__(self, now_s: float) -> None:
        self._left, self._counted_s = float(MOST_EARLY), now_s

    def __repr__(self) -> str:
        return f"_Haste({self._left:.1f} left)"

    def may_be_early(self, now_s: float) -> bool:
        self._left = min(MOST_EARLY, self._left + (now_s - self._counted_s) / INTERVAL_S)
        self._counted_s = now_s
        return self._left >= 1

    def was_early(self) -> None:
        self._left -= 1


def _to_message(key: ObjectKey, activity: Activity, now_s: float) -> pb.Activity:
    last_s = activity.last_request_s
    return pb.Activity(
        namespace=key.namespace,
        name=key.name,
        in_flight_requests=activity.in_flight,
        held_requests=activity.held,
        mean_kv_cache_usage=activity.mean_kv_cache_usage,
        last_request_age_seconds=None if last_s is None else max(0.0, now_s - last_s),
        known_age_seconds=max(0.0, now_s - activity.known_since_s),
        awake_workers=activity.awake_workers,
        running_requests=activity.running,
        waiting_requests=activity.waiting,
        wake_wanted_age_seconds=None if activity.wanted_s is None else max(0.0, now_s - activity.wanted_s),
        canary_fault=activity.fault.words if activity.fault else "",
        canary_try=activity.fault.try_name if activity.fault else "",
    )
