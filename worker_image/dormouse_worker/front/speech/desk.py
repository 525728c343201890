"""Sound of calls becomes features on disk, and windows of them files for the engine. Owns processes and files."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import grpc

from dormouse_api.status import CallError
from dormouse_worker.files.speech_files import SpeechSpec
from dormouse_worker.front.speech.limits import AudioLimits
from dormouse_worker.front.speech.segments import Span
from dormouse_worker.front.text.bounded_process import BoundedProcess, Job
from dormouse_worker.front.text.process_pool import ProcessPool

_RETRY_S = 1.0
_FLOAT_BYTES = 4


class SoundRefused(Exception):
    """A sound cannot be used; the message is for the caller."""


@dataclass(frozen=True, slots=True)
class Sound:
    """One call's sound: features [num_frames, mels] in a file, of which the first ones are no silence filled in."""

    features: Path
    num_frames: int
    num_content_frames: int
    seconds: float

    @property
    def num_bytes(self) -> int:
        """Return the file's size."""
        return self.features.stat().st_size


class SpeechDesk:
    """Everything that a model which reads sound needs of its front."""

    def __init__(self, spec: SpeechSpec, limits: AudioLimits, *, folder: Path) -> None:
        """Start nothing yet. `folder`, which must be there, is where the engine finds windows."""
        self.spec = spec
        self.limits = limits
        self._folder = folder
        self._own = Path(tempfile.mkdtemp(prefix="dormouse-sounds-"))  # not in shared memory, which is small
        self._prefix = self._own.name.removeprefix("dormouse-sounds-")
        self._numbers = count()
        self._num_waiting_bytes = 0
        self._num_features_bytes = 0
        self._pool = ProcessPool(sound_job(limits, SoundRefused), _setup(spec, limits))

    def __repr__(self) -> str:
        return (
            f"SpeechDesk({self._num_waiting_bytes} bytes wait, {self._num_features_bytes} of features, {self._pool!r})"
        )

    async def warm(self) -> None:
        """Start a process before it is needed."""
        await self._pool.warm()

    @asynccontextmanager
    async def hear(self, audio: bytes, caller: str) -> AsyncIterator[Sound]:
        """Decode a sound and keep its features for the block.

        Raises SoundRefused, and CallError RESOURCE_EXHAUSTED where there is no room.
        """
        if self._num_features_bytes >= self.limits.features_bytes:
            raise _no_room("features of other calls", self._num_features_bytes, self.limits.features_bytes)
        target = self._own / str(next(self._numbers))
        try:
            with self._waiting(len(audio)):
                told = json.loads(await self._pool.run(caller, lambda process: self._process(process, target, audio)))
            sound = Sound(target, told["num_frames"], told["num_content_frames"], told["seconds"])
            with self._counted(sound.num_bytes):
                yield sound
        finally:
            target.unlink(missing_ok=True)

    @asynccontextmanager
    async def window(self, sound: Sound, span: Span) -> AsyncIterator[str]:
        """Lay a window's features where the engine finds them, for the block; return the file's name."""
        name = f"{self._prefix}-{next(self._numbers)}.window"
        try:
            await asyncio.to_thread(self._lay, sound, span.first, self._folder / name)
            yield name
        finally:
            (self._folder / name).unlink(missing_ok=True)

    def rest(self) -> None:
        """End the processes that do nothing now."""
        self._pool.rest()

    def close(self) -> None:
        """End the processes, delete all files."""
        self._pool.close()
        shutil.rmtree(self._own, ignore_errors=True)

    def _process(self, process: BoundedProcess, target: Path, audio: bytes) -> str:
        """Have a sound processed; in a thread. Raises SoundRefused."""
        source = target.with_suffix(".sound")
        try:
            source.write_bytes(audio)
            return process.ask({"sources": [str(source)], "target": str(target)})
        except OSError as error:
            raise SoundRefused(f"there is no room for its {len(audio)} bytes ({error.strerror})") from error
        finally:
            source.unlink(missing_ok=True)

    def _lay(self, sound: Sound, first: int, target: Path) -> None:
        """Write a whole window; frames behind the sound's last one are 0, as transformers has them."""
        row_bytes = self.spec.num_mels * _FLOAT_BYTES
        window_bytes = self.spec.window_frames * row_bytes
        with sound.features.open("rb") as features:
            features.seek(first * row_bytes)
            there = features.read(window_bytes)
        try:
            target.write_bytes(there.ljust(window_bytes, b"\0"))
        except OSError as error:
            raise _no_room("windows of other calls", 0, shutil.disk_usage(self._folder).total) from error

    @contextmanager
    def _waiting(self, num_bytes: int) -> Iterator[None]:
        if self._num_waiting_bytes and self._num_waiting_bytes + num_bytes > self.limits.waiting_bytes:
            raise _no_room("sounds that wait", self._num_waiting_bytes, self.limits.waiting_bytes)
        self._num_waiting_bytes += num_bytes
        try:
            yield
        finally:
            self._num_waiting_bytes -= num_bytes

    @contextmanager
    def _counted(self, num_bytes: int) -> Iterator[None]:
        self._num_features_bytes += num_bytes
        try:
            yield
        finally:
            self._num_features_bytes -= num_bytes


def _no_room(what: str, num_bytes: int, limit: int) -> CallError:
    words = f"{what} take {num_bytes} bytes; the limit is {limit}"
    return CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, words, _RETRY_S)


def sound_job(limits: AudioLimits, refusal: type[Exception]) -> Job:
    """Return the work of a process that reads sounds."""
    return Job(
        program="dormouse_worker.sounds.program",
        subject="the decoder of sound",
        starting="being started",
        working="reading this one",
        refusal=refusal,
        seconds=limits.seconds,
        start_s=limits.start_s,
    )


def _setup(spec: SpeechSpec, limits: AudioLimits) -> dict[str, object]:
    return {
        "num_mels": spec.num_mels,
        "window_frames": spec.window_frames,
        "max_seconds": limits.max_seconds,
        "memory_bytes": limits.memory_bytes,
        "max_file_bytes": limits.max_file_bytes(spec),
        "seconds": limits.seconds,
    }
