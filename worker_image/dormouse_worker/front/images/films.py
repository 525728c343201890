"""What stands in a prompt for a video, and where its steps in time are among the tokens. Pure.

The texts are those of transformers' processors (`replace_video_token` of each). A step is some frames that the encoder
takes as one image.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from dormouse_worker.files.video_files import VideoSpec
from dormouse_worker.front.images.placeholders import ImageFacts, Span, spans_of

USUAL_FPS = 1.0  # as vLLM takes frames of which nothing is told


@dataclass(frozen=True, slots=True)
class FilmFacts:
    """What a processor made of one video."""

    steps: Sequence[ImageFacts]
    num_frames: int
    fps: float


def film_text(video: VideoSpec, film: FilmFacts) -> str:
    """Return what stands for a video in the text."""
    if not video.is_timed:
        return video.marker * sum(_rows(video, step) for step in film.steps)
    start, end = video.tokens["vision_start_token"], video.tokens["vision_end_token"]
    times = _times(video.step, film)
    return "".join(
        f"<{time:.1f} seconds>{start}{video.marker * _rows(video, step)}{end}"
        for time, step in zip(times, film.steps, strict=True)
    )


def find_films(token_ids: Sequence[int], video: VideoSpec, films: Sequence[FilmFacts]) -> list[list[list[Span]]]:
    """Return where the rows of each step of each video stand. Raises WrongCount where tokens and rows do not agree."""
    rows = [_rows(video, step) for film in films for step in film.steps]
    spans = iter(spans_of(token_ids, video.token_id, rows, "steps of videos"))
    return [[next(spans) for _ in film.steps] for film in films]


def moments(video: VideoSpec, film: FilmFacts) -> list[tuple[int, int] | None]:
    """Return of each step how many are before it and how far behind the first it is; None = text tells its time.

    In numbers of 32 bits, as transformers has them.
    """
    if video.is_timed:
        return [None] * len(film.steps)
    apart = 1.0 if video.speed is None else _narrow(_narrow(video.speed) * _narrow(video.step / film.fps))
    return [(number, int(_narrow(number * apart))) for number in range(len(film.steps))]


def _rows(video: VideoSpec, step: ImageFacts) -> int:
    time, height, width = step.grid or (0, 0, 0)
    return int(time * height * width // int(video.settings.get("merge_size", 2)) ** 2)


def _times(step: int, film: FilmFacts) -> list[float]:
    """Return when steps are: in the middle between their first frame and their last, which is repeated for more."""
    last = film.num_frames - 1
    starts = range(0, film.num_frames, step)
    return [(start / film.fps + min(start + step - 1, last) / film.fps) / 2 for start in starts]


def _narrow(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])
