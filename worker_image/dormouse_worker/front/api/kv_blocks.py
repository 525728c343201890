"""`dormouse.v1.KvBlocks`: gives blocks of this worker's store to another worker of its deployment, by their names.

Reads files and knows no engine: one that sleeps or has died has left them there. Who asked checks what they hold.
"""

# ruff: noqa: N802  the method names are those of the .proto file
from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from dormouse_api.status import CallError
from dormouse_api.v1 import kv_blocks_pb2 as pb
from dormouse_api.v1 import kv_blocks_pb2_grpc as rpc
from dormouse_worker.front.api.answers import abort, answered
from dormouse_worker.front.refusing import refuse
from dormouse_worker.kv_store.block_file import REALM_BYTES, path_below
from dormouse_worker.kv_store.interface import MAX_NAME_BYTES
from dormouse_worker.kv_store.peer import MAX_NAMES

Context = aio.ServicerContext[Any, Any]

MAX_READS = 8  # under way: each has a part of a file in memory, and a thread for as long as the disk takes
PART_BYTES = 512 << 10
QUIET_S = 0.5  # so long nobody asks: then nobody will who was given a stream of ours
MOST_QUIET_S = 5.0
_HOW = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # no way to elsewhere; what is no file stalls nobody


class KvBlocksService(rpc.KvBlocksServicer):
    """Serves the other workers, one file after the other."""

    def __init__(self, directory: Callable[[], str]) -> None:
        """Take who says where the store is, "" for nowhere."""
        self._directory = directory
        self.expects_callers = False  # streams that were here go on elsewhere
        self._num_asked = 0  # calls under way
        self._num_reads = 0
        self._asked = asyncio.Event()

    def __repr__(self) -> str:
        return f"KvBlocksService({self._num_reads} reads)"

    @answered
    async def Find(self, request: pb.KvBlockNames, _: Context) -> pb.FoundKvBlocks:
        """See the .proto file."""
        paths = self._paths(request)
        with self._counted():
            return pb.FoundKvBlocks(found=await asyncio.to_thread(lambda: [os.access(path, os.F_OK) for path in paths]))

    async def Read(self, request: pb.ReadKvBlocksRequest, context: Context) -> AsyncIterator[pb.KvBlockBytes]:
        """See the .proto file."""
        try:
            parts = self._begin(request)
        except CallError as error:
            await abort(context, error)
        self._num_reads += 1
        try:
            with self._counted():
                while part := await asyncio.to_thread(next, parts, b""):
                    yield pb.KvBlockBytes(data=part)
        finally:
            self._num_reads -= 1

    async def until_quiet(self) -> None:
        """Wait until nobody asks any more who goes on with streams that were here."""
        if not self.expects_callers or not self._directory():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(MOST_QUIET_S):
                while await self._is_asked():
                    pass

    async def _is_asked(self) -> bool:
        """Return whether anybody asks, or begins to within QUIET_S."""
        self._asked.clear()
        try:
            async with asyncio.timeout(QUIET_S):
                await self._asked.wait()
        except TimeoutError:
            return self._num_asked > 0
        return True

    def _begin(self, request: pb.ReadKvBlocksRequest) -> Iterator[bytes]:
        if self._num_reads >= MAX_READS:
            words = f"{MAX_READS} calls of Read are under way; no more are taken"
            raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        return _parts(self._paths(request.blocks), request.block_bytes)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._num_asked += 1
        self._asked.set()
        try:
            yield
        finally:
            self._num_asked -= 1
            self._asked.set()

    def _paths(self, blocks: pb.KvBlockNames) -> Sequence[Path]:
        """Return where the blocks would be. Raises CallError."""
        if len(blocks.realm) != REALM_BYTES:
            refuse("realm", f"{len(blocks.realm)} bytes", f"{REALM_BYTES} bytes")
        if len(blocks.names) > MAX_NAMES:
            refuse("names", f"{len(blocks.names)} names", f"at most {MAX_NAMES}")
        for place, name in enumerate(blocks.names):
            if not 0 < len(name) <= MAX_NAME_BYTES:
                refuse(f"names[{place}]", f"{len(name)} bytes", f"1 to {MAX_NAME_BYTES} bytes")
        if not (directory := self._directory()):
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, "this worker keeps no blocks: it has no kv_store_dir")
        return [Path(directory, path_below(blocks.realm, name)) for name in blocks.names]


def _parts(paths: Sequence[Path], file_bytes: int) -> Iterator[bytes]:
    """Yield the files behind each other, up to the first that is no file of this size."""
    collected = bytearray()
    for path in paths:
        try:
            with os.fdopen(os.open(path, _HOW), "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size != file_bytes:
                    break
                while piece := file.read(PART_BYTES - len(collected)):
                    collected += piece
                    if len(collected) == PART_BYTES:
                        yield bytes(collected)
                        collected.clear()
        except OSError:
            break
    if collected:
        yield bytes(collected)
