"""What a model that sees makes of a chat with images: their places in text and tokens. Raises CallError."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc

from dormouse_api.images import images_of, videos_of
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.ipc import EngineStatus
from dormouse_worker.front.images.desk import ImageDesk
from dormouse_worker.front.images.files import ProcessedImage
from dormouse_worker.front.images.films import USUAL_FPS, film_text, find_films, moments
from dormouse_worker.front.images.held import Film, HeldImages
from dormouse_worker.front.images.making import ImageRefused
from dormouse_worker.front.images.placeholders import Span, WrongCount, expand, find_spans
from dormouse_worker.front.refusing import refuse, refuse_parts

_LIMIT = "one place for each image and video, and no such token in the text"


@dataclass(frozen=True, slots=True)
class PartTokens:
    """How many of a prompt's tokens stand for parts that are no text."""

    images: int = 0
    videos: int = 0
    sounds: int = 0


TEXT_ALONE = PartTokens()


@dataclass(frozen=True, slots=True)
class Sight:
    """A model's eyes, and how its prompts begin."""

    desk: ImageDesk
    bos_token: str = ""  # "" = its tokenizer has none
    sees_images = True
    hears = False

    async def look(self, chat: pb.Chat, held: HeldImages, *, caller: str, salt: str) -> None:
        """Have the chat's images processed, and hold them. Raises CallError INVALID_ARGUMENT, RESOURCE_EXHAUSTED."""
        refuse_parts(chat, ("audio",), "text and images: this model hears nothing")
        if not self.sees_videos:
            refuse_parts(chat, ("video",), "text and images: this model sees no videos")
        try:
            films = [Film(list(video.frames), video.fps or USUAL_FPS) for video in videos_of(chat)]
            await self.desk.hold(held, list(images_of(chat)), films, caller=caller, salt=salt)
        except ImageRefused as error:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"chat.messages is not to be seen: {error}") from error

    def expanded(self, text: str, held: HeldImages) -> str:
        """Return a rendered chat with what stands for its images. Raises CallError INVALID_ARGUMENT."""
        if not held.images and not held.films:
            return text
        spec = self.desk.spec
        films = [] if spec.video is None else [film_text(spec.video, film.facts) for film in held.films]
        try:
            return expand(text, spec, held.facts, films)
        except WrongCount as error:
            refuse("chat.messages", str(error), _LIMIT)

    def inputs(self, prompt: Sequence[int], held: HeldImages) -> list[ImageInput]:
        """Return what the engine gets of images and videos. Raises CallError INVALID_ARGUMENT."""
        try:
            found = [*self._images(prompt, held), *self._films(prompt, held)]
        except WrongCount as error:
            refuse("chat.messages", str(error), _LIMIT)
        return sorted(found, key=lambda image: image.start)

    def count(self, prompt: Sequence[int], held: HeldImages, images: Sequence[ImageInput]) -> PartTokens:
        """Return how many of the prompt's tokens stand for images, and for frames of videos."""
        video = self.desk.spec.video
        of_videos = prompt.count(video.token_id) if video is not None and held.films else 0
        return PartTokens(sum(image.num_rows for image in images) - of_videos, of_videos)

    @property
    def sees_videos(self) -> bool:
        """Return whether videos are seen, too."""
        return self.desk.spec.video is not None

    def _images(self, prompt: Sequence[int], held: HeldImages) -> Iterator[ImageInput]:
        if held.images:
            for image, spans in zip(held.images, find_spans(prompt, self.desk.spec, held.facts), strict=True):
                yield to_input(image, spans)

    def _films(self, prompt: Sequence[int], held: HeldImages) -> Iterator[ImageInput]:
        video = self.desk.spec.video
        if video is None or not held.films:
            return
        found = find_films(prompt, video, [film.facts for film in held.films])
        for film, of_steps in zip(held.films, found, strict=True):
            for step, spans, moment in zip(film.steps, of_steps, moments(video, film.facts), strict=True):
                yield to_input(step, spans, moment)

    def begins_bare(self, text: str) -> bool:
        """Return whether a rendered chat lacks the first token: transformers' processors, unlike tokenizers, add it."""
        return not (self.bos_token and text.startswith(self.bos_token))


def to_input(image: ProcessedImage, spans: list[Span], moment: tuple[int, int] | None = None) -> ImageInput:
    """Return what the engine gets of it."""
    return ImageInput(image.digest, spans, image.path.name, image.num_bytes, image.facts.grid, moment)


def check_rows(images: Sequence[ImageInput], engine: EngineStatus, kind: str) -> None:
    """Raise CallError INVALID_ARGUMENT for an image that the engine has no room for, where it told how much it has."""
    most = engine.report.image_rows if engine.report is not None else 0
    for place, image in enumerate(images):
        if most and image.num_rows > most:
            refuse(f"chat.messages: {kind} {place + 1}", f"{image.num_rows} tokens", f"at most {most}")
