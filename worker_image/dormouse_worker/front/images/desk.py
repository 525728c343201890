"""Images of requests become files for the engine: once for each image, in turns by caller. Owns processes and files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from dormouse_api.status import CallError
from dormouse_worker.files.vision_files import VisionSpec
from dormouse_worker.front.images.files import ImageFiles, Key, NoRoom, ProcessedImage
from dormouse_worker.front.images.films import FilmFacts
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.images.placeholders import ImageFacts
from dormouse_worker.front.text.bounded_process import BoundedProcess, Job
from dormouse_worker.front.text.process_pool import ProcessPool

_RETRY_S = 1.0
_LARGE_BYTES = 1 << 20  # to hash so much takes a millisecond


class ImageRefused(Exception):
    """An image cannot be used; the message is for the caller."""


@dataclass(frozen=True, slots=True)
class Film:
    """A video as it came."""

    frames: Sequence[bytes]
    fps: float


@dataclass(slots=True)
class HeldFilm:
    """The steps of one video."""

    num_frames: int
    fps: float
    steps: list[ProcessedImage] = field(default_factory=list)

    @property
    def facts(self) -> FilmFacts:
        """Return what is known of it."""
        return FilmFacts([step.facts for step in self.steps], self.num_frames, self.fps)


@dataclass(frozen=True, slots=True)
class _Source:
    """What becomes one file for the engine: an image, or frames that are a step of a video."""

    name: str
    files: Sequence[bytes]
    num_frames: int = 0  # of the video; 0 = an image


@dataclass(slots=True)
class HeldImages:
    """The images of one request, until it ends."""

    files: ImageFiles | None = None
    images: list[ProcessedImage] = field(default_factory=list)
    films: list[HeldFilm] = field(default_factory=list)

    @property
    def facts(self) -> list[ImageFacts]:
        """Return what is known of each."""
        return [image.facts for image in self.images]

    def release(self) -> None:
        """Use them no more. Safe to call twice."""
        for image in [*self.images, *(step for film in self.films for step in film.steps)]:
            assert self.files is not None, "held by somebody"
            self.files.give_back(image)
        self.images, self.films = [], []


@dataclass(slots=True)
class _Making:
    """An image that is being processed, for whoever waits."""

    target: Path
    task: asyncio.Task[None] | None = None
    num_waiting: int = 0
    is_left: bool = False  # nobody waits any more: what comes of it is deleted


class ImageDesk:
    """Everything that a model which sees needs of its front."""

    def __init__(self, spec: VisionSpec, limits: ImageLimits, *, folder: Path) -> None:
        """Start nothing yet. `folder`, which must be there, is where the engine finds the files."""
        self.spec = spec
        self.folder = folder
        self.files = ImageFiles(min(limits.cache_bytes, shutil.disk_usage(self.folder).free // 2))
        self._own = Path(tempfile.mkdtemp(prefix="dormouse-sources-"))  # not in shared memory, which is small
        self._prefix = self._own.name.removeprefix("dormouse-sources-")
        self._max_waiting_bytes = limits.waiting_bytes
        self._num_waiting_bytes = 0
        self._count = 0
        self._making: dict[Key, _Making] = {}
        self._pool = ProcessPool(_job(limits), _setup(spec, limits, self.files.budget_bytes))

    def __repr__(self) -> str:
        return f"ImageDesk({self.spec.kind}, {len(self._making)} being made, {self.files!r}, {self._pool!r})"

    async def warm(self) -> None:
        """Start a process before it is needed."""
        await self._pool.warm()

    async def hold(
        self, held: HeldImages, images: Sequence[bytes], films: Sequence[Film] = (), *, caller: str, salt: str
    ) -> None:
        """Add these images and videos, in their order; what was added is to be released also where this fails.

        Raises ImageRefused, and CallError RESOURCE_EXHAUSTED where there is no room.
        """
        held.files = self.files
        try:
            with self._waiting(sum(map(len, [*images, *(frame for film in films for frame in film.frames)]))):
                is_of_several = self.spec.has_several and len(images) > 1
                for number, image in enumerate(images, 1):
                    key = Key(salt, await _sha256(image), is_of_several)
                    held.images.append(await self._one(key, _Source(f"image {number}", [image]), caller))
                for number, film in enumerate(films, 1):
                    held.films.append(HeldFilm(len(film.frames), film.fps))
                    await self._hold_steps(held.films[-1], film, f"video {number}", caller=caller, salt=salt)
        except NoRoom as error:
            raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), _RETRY_S) from error

    def close(self) -> None:
        """End the processes, delete all files."""
        self._pool.close()
        self.files.clear()
        shutil.rmtree(self._own, ignore_errors=True)

    @contextmanager
    def _waiting(self, num_bytes: int) -> Iterator[None]:
        """Count files that are kept until they are processed. Raises NoRoom for too many."""
        if num_bytes and self._num_waiting_bytes + num_bytes > self._max_waiting_bytes:
            words = f"images of {self._num_waiting_bytes} bytes wait already and these have {num_bytes}"
            raise NoRoom(f"{words}; the limit is {self._max_waiting_bytes} bytes")
        self._num_waiting_bytes += num_bytes
        try:
            yield
        finally:
            self._num_waiting_bytes -= num_bytes

    async def _hold_steps(self, held: HeldFilm, film: Film, name: str, *, caller: str, salt: str) -> None:
        """Add a video's steps, one after the other. Raises ImageRefused, NoRoom."""
        assert self.spec.video is not None, "who sees no videos refuses them before"
        step, num_frames = self.spec.video.step, len(film.frames)
        for start in range(0, num_frames, step):
            frames = film.frames[start : start + step]
            source = _Source(f"{name}, frames {start + 1} to {start + len(frames)},", frames, num_frames)
            key = Key(salt, await _sha256_of_all(frames), num_frames=num_frames)
            made = await self._one(key, source, caller)
            held.steps.append(made)
            size, first = (each.facts.values["frame_size"] for each in (made, held.steps[0]))
            if size != first:
                words = f"{source.name} cannot be used: they are {size[0]} × {size[1]} pixels"
                raise ImageRefused(f"{words}; allowed: {first[0]} × {first[1]}, as the first ones")
            if (whole := made.num_bytes * -(-num_frames // step)) > self.files.budget_bytes:
                raise ImageRefused(f"{name} cannot be used: its tensors take {whole} bytes; {self.files.limit}")

    async def _one(self, key: Key, source: _Source, caller: str) -> ProcessedImage:
        if (known := self.files.find(key)) is not None:
            return known
        self.files.check_room()
        try:
            await self._made(key, source, caller)
        except ImageRefused as error:
            raise ImageRefused(f"{source.name} cannot be used: {error}") from error
        if (made := self.files.take(key)) is None:
            raise NoRoom(f"images of {self.files.used_bytes} bytes are in use; {self.files.limit}")
        return made

    async def _made(self, key: Key, source: _Source, caller: str) -> None:
        """Wait until an image is there; the last one who leaves takes it along. Raises ImageRefused, NoRoom."""
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

    async def _make(self, key: Key, making: _Making, source: _Source, caller: str) -> None:
        try:
            told = json.loads(await self._pool.run(caller, lambda process: self._process(process, making, source, key)))
            facts = ImageFacts(told["shapes"], told["values"])
            digest = _salted(bytes.fromhex(told["digest"]), key.salt)
            self.files.add(key, ProcessedImage(making.target, told["num_bytes"], digest, facts))
        finally:
            if self._making.get(key) is making:
                del self._making[key]

    def _process(self, process: BoundedProcess, making: _Making, source: _Source, key: Key) -> str:
        """Have one image processed; in a thread."""
        paths = [self._own / f"{making.target.stem}-{place}.image" for place in range(len(source.files))]
        order = {"sources": [*map(str, paths)], "target": str(making.target), "num_frames": source.num_frames}
        try:
            for path, file in zip(paths, source.files, strict=True):
                path.write_bytes(file)
            return process.ask({**order, "is_of_several": key.is_of_several})
        except OSError as error:
            size = sum(map(len, source.files))
            raise NoRoom(f"an image of {size} bytes does not fit {self._own}: {error.strerror}") from error
        except BaseException:
            making.target.unlink(missing_ok=True)
            raise
        finally:
            for path in paths:
                path.unlink(missing_ok=True)
            if making.is_left:
                making.target.unlink(missing_ok=True)


def _job(limits: ImageLimits) -> Job:
    return Job(
        program="dormouse_worker.pictures.program",
        subject="the model's image processor",
        starting="being made",
        working="processing this image",
        refusal=ImageRefused,
        seconds=limits.seconds,
        start_s=limits.start_s,
    )


def _setup(spec: VisionSpec, limits: ImageLimits, budget_bytes: int) -> dict[str, object]:
    return {
        "processor": spec.processor,
        "settings": dict(spec.settings),
        "arguments": dict(spec.arguments),
        "video": spec.video and {"settings": dict(spec.video.settings), "is_budgeted": spec.video.is_budgeted},
        "max_pixels": limits.max_pixels,
        "memory_bytes": limits.memory_bytes,
        "max_tensor_bytes": min(limits.max_tensor_bytes, budget_bytes),
        "seconds": limits.seconds,
    }


def _salted(digest: bytes, salt: str) -> bytes:
    """Return the name of an image's rows: who may not share prefixes shares none, nor learns from their time."""
    return hashlib.sha256(digest + salt.encode()).digest() if salt else digest


async def _sha256_of_all(files: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"".join([await _sha256(file) for file in files])).digest()


async def _sha256(image: bytes) -> bytes:
    made = await asyncio.to_thread(hashlib.sha256, image) if len(image) > _LARGE_BYTES else hashlib.sha256(image)
    return made.digest()
