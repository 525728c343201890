"""Files of callers become files for the engine: once for each, in turns by caller. Owns processes and files.

Knows neither images nor sounds: a program of its own processes them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.images import IMAGES, Noun
from dormouse_worker.front.images.files import ImageFiles, Key, NoRoom, ProcessedImage
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.images.placeholders import ImageFacts
from dormouse_worker.front.text.bounded_process import BoundedProcess, Job
from dormouse_worker.front.text.process_pool import ProcessPool

_RETRY_S = 1.0
_LARGE_BYTES = 1 << 20  # to hash so much takes a millisecond


class ImageRefused(Exception):
    """An image or a sound cannot be used; the message is for the caller."""


@dataclass(frozen=True, slots=True)
class Source:
    """What becomes one file for the engine: an image, frames that are a step of a video, or a sound."""

    name: str
    files: Sequence[bytes]
    order: Mapping[str, Any] = field(default_factory=dict)  # what the program is told besides


@dataclass(slots=True)
class _Making:
    """A file that is being made, for whoever waits."""

    target: Path
    task: asyncio.Task[None] | None = None
    num_waiting: int = 0
    is_left: bool = False  # nobody waits any more: what comes of it is deleted


class FileMaker:
    """Makes the files of one model; who inherits it knows what they are made of."""

    def __init__(
        self, job: Job, setup: Mapping[str, object], limits: ImageLimits, files: ImageFiles, folder: Path
    ) -> None:
        """Start nothing yet. `folder`, which must be there, is where the engine finds the files."""
        self.files = files
        self.folder = folder
        self._own = Path(tempfile.mkdtemp(prefix="dormouse-sources-"))  # not in shared memory, which is small
        self._prefix = self._own.name.removeprefix("dormouse-sources-")
        self._max_waiting_bytes = limits.waiting_bytes
        self._num_waiting_bytes = 0
        self._count = 0
        self._making: dict[Key, _Making] = {}
        self._pool = ProcessPool(job, setup)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._making)} being made, {self.files!r}, {self._pool!r})"

    async def warm(self) -> None:
        """Start a process before it is needed."""
        await self._pool.warm()

    def rest(self) -> None:
        """End the processes that do nothing now."""
        self._pool.rest()

    def close(self) -> None:
        """End the processes, delete all files."""
        self._pool.close()
        self.files.clear()
        shutil.rmtree(self._own, ignore_errors=True)

    @contextmanager
    def room_for(self, files: Sequence[bytes]) -> Iterator[None]:
        """Let files be processed in the block. Raises CallError RESOURCE_EXHAUSTED where there is no room."""
        try:
            with self._waiting(files):
                yield
        except NoRoom as error:
            raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), _RETRY_S) from error

    @contextmanager
    def _waiting(self, files: Sequence[bytes]) -> Iterator[None]:
        """Count files that are kept until they are processed. Raises NoRoom for too many."""
        num_bytes = sum(map(len, files))
        if num_bytes and self._num_waiting_bytes + num_bytes > self._max_waiting_bytes:
            several = self.files.noun.several
            words = f"{several} of {self._num_waiting_bytes} bytes wait already and these have {num_bytes}"
            raise NoRoom(f"{words}; the limit is {self._max_waiting_bytes} bytes")
        self._num_waiting_bytes += num_bytes
        try:
            yield
        finally:
            self._num_waiting_bytes -= num_bytes

    async def take(self, key: Key, source: Source, caller: str) -> ProcessedImage:
        """Return what becomes of it, in use until it is given back. Raises ImageRefused, NoRoom."""
        if (known := self.files.find(key)) is not None:
            return known
        self.files.check_room()
        try:
            await self._made(key, source, caller)
        except ImageRefused as error:
            raise ImageRefused(f"{source.name} cannot be used: {error}") from error
        if (made := self.files.take(key)) is None:
            raise NoRoom(f"{self.files.in_use}; {self.files.limit}")
        return made

    async def _made(self, key: Key, source: Source, caller: str) -> None:
        """Wait until a file is there; the last one who leaves takes it along. Raises ImageRefused, NoRoom."""
        making = self._making.get(key)
        if making is None:
            self._count += 1
            making = self._making[key] = _Making(self.folder / f"{self._prefix}-{self._count}.safetensors")
            making.task = asyncio.create_task(self._make(key, making, source, caller))
        assert making.task is not None, "begun where it was made"
        making.num_waiting += 1
        try:
            await asyncio.shield(making.task)
        finally:
            making.num_waiting -= 1
            if not making.num_waiting and not making.task.done():
                making.is_left = True
                making.task.cancel()
                making.target.unlink(missing_ok=True)
                self._making.pop(key, None)

    async def _make(self, key: Key, making: _Making, source: Source, caller: str) -> None:
        try:
            told = json.loads(await self._pool.run(caller, lambda process: self._process(process, making, source)))
            facts = ImageFacts(told["shapes"], told["values"])
            digest = _salted(bytes.fromhex(told["digest"]), key.salt)
            self.files.add(key, ProcessedImage(making.target, told["num_bytes"], digest, facts))
        finally:
            if self._making.get(key) is making:
                del self._making[key]

    def _process(self, process: BoundedProcess, making: _Making, source: Source) -> str:
        """Have one source processed; in a thread."""
        paths = [self._own / f"{making.target.stem}-{place}.source" for place in range(len(source.files))]
        try:
            for path, file in zip(paths, source.files, strict=True):
                path.write_bytes(file)
            return process.ask({"sources": [*map(str, paths)], "target": str(making.target), **source.order})
        except OSError as error:
            size = sum(map(len, source.files))
            words = f"{self.files.noun.one} of {size} bytes does not fit {self._own}"
            raise NoRoom(f"{words}: {error.strerror}") from error
        except BaseException:
            making.target.unlink(missing_ok=True)
            raise
        finally:
            for path in paths:
                path.unlink(missing_ok=True)
            if making.is_left:
                making.target.unlink(missing_ok=True)


def files_within(cache_bytes: int, folder: Path, noun: Noun = IMAGES) -> ImageFiles:
    """Return no files yet, with room for so many bytes or half of what the folder has."""
    return ImageFiles(min(cache_bytes, shutil.disk_usage(folder).free // 2), noun)


async def sha256_of_all(files: Sequence[bytes]) -> bytes:
    """Return what tells files apart from others in another order, too."""
    return hashlib.sha256(b"".join([await sha256(file) for file in files])).digest()


async def sha256(file: bytes) -> bytes:
    """Return a file's digest; the event loop goes on beside a large one."""
    made = await asyncio.to_thread(hashlib.sha256, file) if len(file) > _LARGE_BYTES else hashlib.sha256(file)
    return made.digest()


def _salted(digest: bytes, salt: str) -> bytes:
    """Return the name of an image's rows: who may not share prefixes shares none, nor learns from their time."""
    return hashlib.sha256(digest + salt.encode()).digest() if salt else digest
