"""Images and videos of requests become files for the engine: how they are named, and in which order they are made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dormouse_worker.files.vision_files import VisionSpec
from dormouse_worker.front.images.files import Key
from dormouse_worker.front.images.held import Film, HeldFilm, HeldImages
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.images.making import FileMaker, ImageRefused, Source, files_within, sha256, sha256_of_all
from dormouse_worker.front.text.bounded_process import Job


class ImageDesk(FileMaker):
    """Everything that a model which sees needs of its front."""

    def __init__(self, spec: VisionSpec, limits: ImageLimits, *, folder: Path) -> None:
        """Start nothing yet. `folder`, which must be there, is where the engine finds the files."""
        self.spec = spec
        files = files_within(limits.cache_bytes, folder)
        super().__init__(_job(limits), _setup(spec, limits, files.budget_bytes), limits, files, folder)

    async def hold(
        self, held: HeldImages, images: Sequence[bytes], films: Sequence[Film] = (), *, caller: str, salt: str
    ) -> None:
        """Add these images and videos, in their order; what was added is to be released also where this fails.

        Raises ImageRefused, and CallError RESOURCE_EXHAUSTED where there is no room.
        """
        held.files = self.files
        with self.room_for([*images, *(frame for film in films for frame in film.frames)]):
            is_of_several = self.spec.has_several and len(images) > 1
            for number, image in enumerate(images, 1):
                key = Key(salt, await sha256(image), is_of_several)
                source = Source(f"image {number}", [image], {"is_of_several": is_of_several})
                held.images.append(await self.take(key, source, caller))
            for number, film in enumerate(films, 1):
                held.films.append(HeldFilm(len(film.frames), film.fps))
                await self._hold_steps(held.films[-1], film, f"video {number}", caller=caller, salt=salt)

    async def _hold_steps(self, held: HeldFilm, film: Film, name: str, *, caller: str, salt: str) -> None:
        """Add a video's steps, one after the other. Raises ImageRefused, NoRoom."""
        assert self.spec.video is not None, "who sees no videos refuses them before"
        step, num_frames = self.spec.video.step, len(film.frames)
        for start in range(0, num_frames, step):
            frames = film.frames[start : start + step]
            words = f"{name}, frames {start + 1} to {start + len(frames)},"
            source = Source(words, frames, {"num_frames": num_frames})
            key = Key(salt, await sha256_of_all(frames), num_frames=num_frames)
            made = await self.take(key, source, caller)
            held.steps.append(made)
            size, first = (each.facts.values["frame_size"] for each in (made, held.steps[0]))
            if size != first:
                words = f"{source.name} cannot be used: they are {size[0]} × {size[1]} pixels"
                raise ImageRefused(f"{words}; allowed: {first[0]} × {first[1]}, as the first ones")
            if (whole := made.num_bytes * -(-num_frames // step)) > self.files.budget_bytes:
                raise ImageRefused(f"{name} cannot be used: its tensors take {whole} bytes; {self.files.limit}")


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
