"""Follows the load of every worker that is awake or waking: one stream each. Owns the streams, not what they tell."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from grpc import aio

from dormouse_api.capabilities import Capability
from dormouse_api.mutual_tls import TlsError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_gateway.activity import WorkerLoad
from dormouse_gateway.model import Endpoint
from dormouse_gateway.router import Router
from dormouse_gateway.workers.channels import Channels
from dormouse_kube.reflector import Backoff, ObjectKey

_LOG = logging.getLogger(__name__)
_ANSWER_TIMEOUT_S = 5.0
_AT_REST = ("Asleep", "Off", "Zero", "Rejected")  # how phases begin in which no worker serves or is about to


@dataclass(frozen=True, slots=True)
class _Stream:
    endpoint: Endpoint
    task: asyncio.Task[None]


class LoadWatch:
    """Keeps one stream per worker; tells the router what they say."""

    def __init__(
        self,
        router: Router,
        channels: Channels,
        *,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        rng: random.Random | None = None,
        on_draining: Callable[[Endpoint, bool], None] = lambda *_: None,
    ) -> None:
        """Take where workers are found and called, and who is told whether one drains."""
        self._on_draining = on_draining
        self._router = router
        self._channels = channels
        self._backoff = backoff or Backoff(first_s=0.1, max_s=1.0)
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311  # jitter needs no cryptography
        self._streams: dict[ObjectKey, _Stream] = {}  # by pod
        self._ending: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        """Show who is followed."""
        return f"LoadWatch({', '.join(f'{pod.namespace}/{pod.name}' for pod in sorted(self._streams))})"

    def on_deployment(self, key: ObjectKey) -> None:
        """Look again at the workers of a deployment, after the router learned of a change."""
        for endpoint in self._router.pool.endpoints_of(key):
            self.on_pod(endpoint.pod)

    def on_pod(self, pod: ObjectKey) -> None:
        """Look again at a worker, after the router learned of a change."""
        found = self._router.pool.endpoint_of(pod)
        wanted = found if found and self._is_up(found) else None
        stream = self._streams.get(pod)
        if stream and wanted and _place(stream.endpoint) == _place(wanted):
            return
        if stream:
            self._end(pod)
        if wanted:
            name = f"load of {pod.namespace}/{pod.name}"
            task = asyncio.get_running_loop().create_task(self._follow(wanted), name=name)
            self._streams[pod] = _Stream(wanted, task)

    async def aclose(self) -> None:
        """End every stream."""
        for pod in list(self._streams):
            self._end(pod)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, pod: ObjectKey) -> None:
        stream = self._streams.pop(pod)
        stream.task.cancel()
        self._ending.add(stream.task)
        stream.task.add_done_callback(self._ending.discard)
        self._note(stream.endpoint, None)

    async def _follow(self, endpoint: Endpoint) -> None:
        """Read the worker's load until cancelled. A mistake of ours costs a moment, not the worker for ever."""
        while True:
            try:
                await self._listen(endpoint)
            except Exception:  # noqa: BLE001  # whoever is told of a load, or fails to read it
                _LOG.exception("following the load of %s failed and is begun again", endpoint.pod.name)
            await self._sleep(self._backoff.delay_s(1, self._rng))

    async def _listen(self, endpoint: Endpoint) -> None:
        """Read the worker's load, again after every break, without an end."""
        failures, is_identified = 0, False
        while True:
            try:
                async for load in self._read(endpoint):
                    failures = 0
                    self._note(endpoint, load)
                    # one that opens anew may have another engine
                    is_identified = load.is_ready and (is_identified or await self._identify(endpoint))
            except aio.AioRpcError as error:
                _LOG.debug("the load of %s is lost: %s: %s", endpoint.pod.name, error.code().name, error.details())
            except TlsError as error:
                _LOG.error("the load of %s cannot be read: %s", endpoint.pod.name, error)
            except asyncio.CancelledError:
                if _is_cancelling():
                    raise
                _LOG.debug("the load of %s is read over another connection", endpoint.pod.name)  # the former was closed
            self._note(endpoint, None)
            failures, is_identified = failures + 1, False  # it may be another container by the time it is heard again
            await self._sleep(self._backoff.delay_s(failures, self._rng))

    async def _read(self, endpoint: Endpoint) -> AsyncIterator[WorkerLoad]:
        stub: Any = rpc.InferenceStub(self._channels.get(endpoint.id))
        call = stub.WatchLoad(pb.WatchLoadRequest(), wait_for_ready=True)  # a pod that starts is heard when it listens
        try:
            async for load in call:
                self._channels.carry_soon(endpoint.id)  # before the first request, and again after a break
                self._on_draining(endpoint, load.draining)
                takes_requests = load.ready and not load.draining
                yield WorkerLoad(load.running_requests, load.waiting_requests, load.kv_cache_usage, takes_requests)
        finally:
            call.cancel()

    async def _identify(self, endpoint: Endpoint) -> bool:
        """Ask the worker which model files it read, and what it can; False if it did not answer."""
        stub: Any = rpc.InferenceStub(self._channels.get(endpoint.id))
        try:
            model = await stub.GetModel(pb.GetModelRequest(), timeout=_ANSWER_TIMEOUT_S)
        except aio.AioRpcError as error:
            _LOG.debug("%s does not tell its model: %s", endpoint.pod.name, error.details())
            return False
        resumes = not model.capabilities or Capability.RESUME in model.capabilities
        self._router.pool.identify(endpoint.id, model.model_digest, resumes=resumes)
        return True

    def _note(self, endpoint: Endpoint, load: WorkerLoad | None) -> None:
        self._router.note_load(endpoint, load)

    def _is_up(self, endpoint: Endpoint) -> bool:
        """Return whether the worker is awake, or may be about to be: then its load says so before the kubelet does.

        Requests that are held for it wake it, and it may be awake already, though the phase does not say so yet.
        """
        deployment = self._router.catalogue.get(endpoint.deployment)
        if deployment is None:
            return False
        activity = self._router.activity.activity(endpoint.deployment)
        room = self._router.pool.room_of(endpoint)
        is_awaited = activity is not None and activity.held > 0
        is_open = room is not None and room.is_open
        return endpoint.ready or is_awaited or is_open or not deployment.phase.startswith(_AT_REST)


def _is_cancelling() -> bool:
    """Return whether this very task was cancelled, and not only the stream that it reads."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _place(endpoint: Endpoint) -> tuple[object, ...]:
    return (endpoint.id, endpoint.deployment)
