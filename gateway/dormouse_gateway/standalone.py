"""`python -m dormouse_gateway.standalone`: OpenAI's API in front of one worker of this machine. Knows no Kubernetes.

`dormouse serve` starts it, and hands it the socket to listen on. It is the gateway's own way from a request to a worker
(held while the model loads, retried, refused in the same words), with a catalogue that never changes. It lives as long
as the worker: the other end of its standard input is the worker's, and closes with it, however the worker ends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import uvloop

from dormouse_api.outlets import unhindered_outputs
from dormouse_api.status import CallError
from dormouse_api.threads import patient_threads
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.keys import ANYBODY, Keyring
from dormouse_gateway.descriptors import limit, share
from dormouse_gateway.hold.holder import Holder
from dormouse_gateway.load_watch import LoadWatch
from dormouse_gateway.migrate.evictions import Evictions
from dormouse_gateway.migrate.migrator import Migrator
from dormouse_gateway.model import LABEL_SERVICE
from dormouse_gateway.openai.app import make_app
from dormouse_gateway.openai.calls import ask
from dormouse_gateway.openai.door import OpenAIDoor
from dormouse_gateway.openai.generating import Generating
from dormouse_gateway.proxy import Forward, InferenceProxy
from dormouse_gateway.router import Router
from dormouse_gateway.settings import Settings, hold_settings
from dormouse_gateway.telemetry.metrics import Metrics
from dormouse_gateway.workers.channels import Channels
from dormouse_kube.reflector import ObjectKey

NAMESPACE = "local"  # what /v1/models calls the owner
_MANY = 1 << 20  # the worker itself says when it has too many requests
_WAITING_S = 10.0  # between two comments to a client whose request waits for the model to load
_TO_TRY = {  # by the tasks of models that make no text
    "embed": ("v1/embeddings", '"input": "Hello"'),
    "classify": ("classify", '"input": "Hello"'),
    "score": ("v1/rerank", '"query": "Hello", "documents": ["Good morning"]'),
}
_LAST_WORDS_S = 1.0  # for what the worker said last, once it has ended


class Trust(NamedTuple):
    """Whom a door lets in, and what it tells its worker of him; None = nothing but the trace."""

    keys: Keyring = Keyring()
    forward: Forward | None = None


class Door:
    """The API of one worker. Use: start, then stop. Needs a running event loop."""

    def __init__(
        self,
        names: Sequence[str],
        worker: tuple[str, int],
        adapters: Sequence[str] = (),
        *,
        trust: Trust | None = None,
        hold_s: int | None = None,
        make_router: Callable[..., Router] = Router,
    ) -> None:
        """Take the names of the worker's model and of its adapters, and where the worker listens, or will.

        Whom it lets in, and what it tells the worker of him, says `trust`; without it all, and nothing. Requests wait
        for the worker for `hold_s`, or as long as before any.
        """
        settings = Settings()
        self.names = names
        self._adapters = adapters
        self.ready = asyncio.Event()
        with patient_threads():
            self._channels = Channels(in_pod=not worker[1])
        self.router = make_router(on_close=self._channels.discard)
        self._loads = LoadWatch(self.router, self._channels)
        self._holder = Holder(self.router, hold_settings(settings))
        self._departures = Evictions(self.router.pool.has_peer, after_s=settings.migrate_after_s)
        migrator = Migrator(settings.moving, self._departures)
        keys, forward = trust or Trust()
        self._proxy = InferenceProxy(
            self.router, self._channels, Metrics(), self._holder, migrator=migrator, keys=keys, forward=forward
        )
        generating = Generating(
            self._proxy.serve, keys, settings.http_timeout_s, waiting_s=_WAITING_S, images=self._proxy.images
        )
        most = share(limit(), settings.http_max_connections).http
        app = make_app(self.router, generating)
        self._openai = OpenAIDoor(app, timeout_s=settings.http_timeout_s, max_connections=most, tls=None)
        self._worker = worker
        self._lifecycle = {} if hold_s is None else {"holdTimeoutSeconds": hold_s}

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket, and begin to look for the worker."""
        review = self.router.on_change

        def changed(key: ObjectKey) -> None:
            review(key)
            if self.router.pool.is_ready(key):
                self.ready.set()

        self.router.on_change = changed
        for number, name in enumerate(self.names):
            key, pod = ObjectKey(NAMESPACE, f"model-{number}"), ObjectKey(NAMESPACE, f"worker-{number}")
            adapters = () if number else self._adapters
            made = deployment(key, name, pod, adapters)
            self.router.on_deployment(key, {**made, "spec": {**made["spec"], "lifecycle": self._lifecycle}})
            self.router.on_slice(pod, worker_slice(pod, key, self._worker))
            self._loads.on_pod(pod)
        self.router.is_synced = True
        await self._openai.serve(listener)

    async def described(self) -> pb.GetModelResponse:
        """Return what the worker, which must be ready, says of its model; nothing if it does not."""
        try:
            raw = await ask(self._proxy.serve, pb.GetModelRequest(model=self.names[0]), (), ANYBODY)
        except CallError:
            return pb.GetModelResponse()
        return pb.GetModelResponse.FromString(raw)

    async def stop(self) -> None:
        """Take nothing more, say the last words, close everything."""
        self._holder.hand_back()
        await self._openai.stop(_LAST_WORDS_S)
        self._departures.close()
        await self._loads.aclose()
        await self._channels.aclose()


def deployment(key: ObjectKey, name: str, pod: ObjectKey, adapters: Sequence[str]) -> dict[str, Any]:
    """Return the model as the catalogue reads it, with its adapters and its only pod."""
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"namespace": key.namespace, "name": key.name, "uid": key.name, "creationTimestamp": created}
    spec = {"model": {"name": name}, "engine": {"maxNumSeqs": _MANY}, "adapters": [{"name": each} for each in adapters]}
    return {"metadata": metadata, "spec": spec, "status": {"pods": [{"name": pod.name, "uid": pod.name}]}}


def worker_slice(pod: ObjectKey, key: ObjectKey, worker: tuple[str, int]) -> dict[str, Any]:
    """Return the worker as the pool reads it. Whether it is ready it tells itself."""
    host, port = worker
    found = {"kind": "Pod", "name": pod.name, "uid": pod.name}
    return {
        "metadata": {"namespace": pod.namespace, "name": pod.name, "labels": {LABEL_SERVICE: key.name}},
        "ports": [{"name": "grpc", "port": port}],
        "endpoints": [{"addresses": [host], "conditions": {"ready": False}, "targetRef": found}],
    }


def invitation(name: str, address: str, model: pb.GetModelResponse) -> str:
    """Return what a user reads once the worker serves: where the API is, and a line to try."""
    path, body = "v1/completions", '"prompt": "Hello"'
    if model.task in _TO_TRY:
        path, body = _TO_TRY[model.task]
    elif model.has_chat_template:
        path, body = "v1/chat/completions", '"messages": [{"role": "user", "content": "Hello"}]'
    quoted = name.replace("'", "'\\''")
    if model.task == "transcribe":
        return (
            f"{name} is ready: OpenAI's API on http://{address}/v1\n"
            f"  try  curl http://{address}/v1/audio/transcriptions -F 'model={quoted}' -F file=@speech.wav"
        )
    return (
        f"{name} is ready: OpenAI's API on http://{address}/v1\n"
        f"  try  curl http://{address}/{path} -H 'content-type: application/json'"
        f' -d \'{{"model": "{quoted}", {body}}}\''
    )


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    listener: socket.socket
    shown: str  # host:port, as the user reaches it
    worker: tuple[str, int]
    names: tuple[str, ...]
    parent: int  # the worker's process
    adapters: tuple[str, ...] = ()


def parse_flags(argv: Sequence[str]) -> Flags:
    """Read the command line that `dormouse serve` writes."""
    parser = argparse.ArgumentParser("dormouse_gateway.standalone", description=__doc__)
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the socket to listen on")
    parser.add_argument("--shown", required=True, help="HOST:PORT of that socket, as users reach it")
    parser.add_argument("--worker", nargs=2, metavar=("HOST", "PORT"), required=True, help="where the worker listens")
    parser.add_argument("--parent", type=int, required=True, help="the worker's process, to end if this fails")
    parser.add_argument("--adapter", action="append", default=[], help="the name of one of its LoRA adapters")
    parser.add_argument("names", nargs="+", help="the model's names")
    given = parser.parse_args(argv)
    worker = (given.worker[0], int(given.worker[1]))
    listener, names, adapters = socket.socket(fileno=given.listener), tuple(given.names), tuple(given.adapter)
    return Flags(listener, given.shown, worker, names, given.parent, adapters)


async def run(flags: Flags) -> None:
    """Serve until the worker has ended, or until SIGTERM."""
    door, over = Door(flags.names, flags.worker, flags.adapters), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_reader(sys.stdin.fileno(), over.set)  # nothing is ever written there: it can only close
    await door.start(flags.listener)
    greeting = asyncio.create_task(_greet(door, flags.shown))
    try:
        await over.wait()
    finally:
        greeting.cancel()
        loop.remove_reader(sys.stdin.fileno())
        await door.stop()


async def _greet(door: Door, shown: str) -> None:
    await door.ready.wait()
    print(invitation(door.names[0], shown, await door.described()), flush=True)


def main() -> None:
    """Run; whatever ends this ends the worker, too."""
    flags = parse_flags(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the worker's: it lets requests end, and then this
    try:
        with unhindered_outputs():
            logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
            uvloop.run(run(flags))
    finally:
        if os.getppid() == flags.parent:
            with suppress(ProcessLookupError):
                os.kill(flags.parent, signal.SIGTERM)


if __name__ == "__main__":
    main()
