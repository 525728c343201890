"""Carries batches by ZeroMQ, as vLLM does: three frames by PUB; those that are kept once more by ROUTER.

    PUB     topic, number, batch
    ROUTER  asked with a number, which begins it: number, batch; …; -1, nothing

Numbers are 8 bytes, the highest first. ZeroMQ is imported where somebody is told something, only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from dormouse_api.names import POD_IP_VARIABLE
from dormouse_worker.common.kv_events import KvEventsConfig, is_bound
from dormouse_worker.front.kv_events.publisher import Kept, NextKept, NoPublisher, Publisher

if TYPE_CHECKING:
    import zmq
    import zmq.asyncio

logger = logging.getLogger(__name__)

FLAG = "--kv-events-config"
MAX_QUESTION_BYTES = 1024  # a longer one, or a longer topic, ends its connection
MAX_REPLAYS = 8  # at once; who asks for one more hears nothing
REPLAY_HWM = 64  # batches that wait for one asker
REPLAY_S = 30.0  # for all of them
PAUSE_S = 0.02  # while one asker reads slowly
KEEPALIVE_S = 60
END = (-1).to_bytes(8, "big", signed=True)


def make_publisher(config: KvEventsConfig, clock: Callable[[], float], environ: Mapping[str, str]) -> NoPublisher:
    """Return what the settings ask for; it does nothing before it is started."""
    if not config.is_on:
        return NoPublisher()
    topic = config.topic.replace(f"{{{POD_IP_VARIABLE}}}", environ.get(POD_IP_VARIABLE, ""))
    return Publisher(ZmqSockets(config, topic, clock=clock), config, time.time)


class ZmqSockets:
    """Implements `Transport`. Owns both sockets, and the answers under way."""

    def __init__(
        self,
        config: KvEventsConfig,
        topic: str = "",
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config, self._clock, self._sleep = config, clock, sleep
        self._topic = topic.encode()
        self._context: zmq.Context[Any] | None = None
        self._publisher: zmq.Socket[Any] | None = None
        self._answerer: zmq.asyncio.Socket | None = None
        self._listening: asyncio.Task[None] | None = None
        self._answers: dict[bytes, asyncio.Task[None]] = {}  # by who asked
        self.endpoints: list[str] = []  # once they are open: with the ports that were chosen

    def __repr__(self) -> str:
        return f"ZmqSockets({self.endpoints}, {len(self._answers)} answers)"

    def open(self, next_kept: NextKept) -> None:
        """See `Transport`."""
        try:
            import zmq
            import zmq.asyncio
        except ImportError as error:
            words = f"{FLAG} needs the extra `kv-events` (pip install 'dormouse[kv-events]'): {error}"
            raise RuntimeError(words) from error
        self._context = zmq.Context()
        self._publisher = self._context.socket(zmq.PUB)
        self._attach(self._publisher, self._config.endpoint, self._config.hwm)
        if self._config.replay_endpoint is not None:
            self._answerer = zmq.asyncio.Context.shadow(self._context).socket(zmq.ROUTER)
            self._answerer.set(zmq.ROUTER_MANDATORY, 1)  # else what finds no room is dropped in silence
            self._attach(self._answerer, self._config.replay_endpoint, REPLAY_HWM)
            self._listening = asyncio.get_running_loop().create_task(self._listen(self._answerer, next_kept))
        logger.info("tells of the KV cache", extra={"fields": {"at": self.endpoints}})

    def send(self, kept: Kept) -> None:
        """See `Transport`. ZeroMQ drops it for subscribers for whom `hwm` batches wait already."""
        import zmq

        if self._publisher is not None:
            self._publisher.send_multipart((self._topic, _bytes(kept.number), kept.payload), zmq.DONTWAIT)

    async def close(self) -> None:
        """See `Transport`."""
        tasks = [*self._answers.values(), *([self._listening] if self._listening else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for socket in (self._publisher, self._answerer):
            if socket is not None:
                socket.close(linger=0)
        self._publisher = self._answerer = None
        if self._context is not None:
            self._context.term()
            self._context = None

    def _attach(self, socket: zmq.Socket[Any], endpoint: str, hwm: int) -> None:
        import zmq

        socket.set(zmq.SNDHWM, hwm)
        socket.set(zmq.MAXMSGSIZE, MAX_QUESTION_BYTES)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, int("[" in endpoint or "//*" in endpoint))  # a * is every address of both families
        socket.set(zmq.TCP_KEEPALIVE, 1)  # a peer that vanished keeps no batches
        socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
        try:
            (socket.bind if is_bound(endpoint) else socket.connect)(endpoint)
        except zmq.ZMQError as error:
            raise RuntimeError(f"{FLAG}: {endpoint} cannot be used; is it taken? ({error})") from error
        self.endpoints.append(socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))

    async def _listen(self, answerer: zmq.asyncio.Socket, next_kept: NextKept) -> None:
        while True:
            match await answerer.recv_multipart():
                case [asker, b"", number] if self._may_answer(asker) and len(number) == len(END):
                    answer = self._answer(answerer, asker, int.from_bytes(number, "big"), next_kept)
                    self._answers[asker] = asyncio.create_task(answer)
                    self._answers[asker].add_done_callback(partial(self._forget, asker))
                case frames:
                    logger.debug("not answered: %d frames", len(frames))

    def _may_answer(self, asker: bytes) -> bool:
        return asker not in self._answers and len(self._answers) < MAX_REPLAYS

    async def _answer(self, answerer: zmq.asyncio.Socket, asker: bytes, number: int, next_kept: NextKept) -> None:
        """Send what is kept from this number on, as fast as the asker reads; not longer than it may take."""
        import zmq

        deadline_s = self._clock() + REPLAY_S
        with suppress(zmq.ZMQError, TimeoutError):  # the asker has gone, or does not read
            while (kept := next_kept(number)) is not None:
                await self._reply(answerer, (asker, b"", _bytes(kept.number), kept.payload), deadline_s)
                number = kept.number + 1
            await self._reply(answerer, (asker, b"", END, b""), deadline_s)

    def _forget(self, asker: bytes, _: asyncio.Task[None]) -> None:
        del self._answers[asker]

    async def _reply(self, answerer: zmq.asyncio.Socket, frames: tuple[bytes, ...], deadline_s: float) -> None:
        """Send one message. Raises TimeoutError, ZMQError."""
        import zmq

        while True:
            try:
                await answerer.send_multipart(frames, zmq.DONTWAIT)
            except zmq.Again:
                if self._clock() > deadline_s:
                    raise TimeoutError from None
                await self._sleep(PAUSE_S)
            else:
                await self._sleep(0)  # others have a turn
                return


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")
