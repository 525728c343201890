"""What a request holds of its images, videos and sounds until it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dormouse_worker.front.images.files import ImageFiles, ProcessedImage
from dormouse_worker.front.images.films import FilmFacts
from dormouse_worker.front.images.placeholders import ImageFacts


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


@dataclass(slots=True)
class HeldImages:
    """All of one request."""

    files: ImageFiles | None = None
    images: list[ProcessedImage] = field(default_factory=list)
    films: list[HeldFilm] = field(default_factory=list)
    sounds: list[ProcessedImage] = field(default_factory=list)

    @property
    def facts(self) -> list[ImageFacts]:
        """Return what is known of each image."""
        return [image.facts for image in self.images]

    def release(self) -> None:
        """Use them no more. Safe to call twice."""
        for one in [*self.images, *(step for film in self.films for step in film.steps), *self.sounds]:
            assert self.files is not None, "held by somebody"
            self.files.give_back(one)
        self.images, self.films, self.sounds = [], [], []
