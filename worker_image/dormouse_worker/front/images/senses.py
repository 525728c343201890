"""How a model takes parts of messages that are no text, by its files: it sees, it hears, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dormouse_worker.files.hearing_files import HearingSpec, read_hearing
from dormouse_worker.files.vision_files import VisionSpec, read_vision
from dormouse_worker.front.images.desk import ImageDesk
from dormouse_worker.front.images.ears import SoundDesk
from dormouse_worker.front.images.hearing import Hearing
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.images.sight import Sight
from dormouse_worker.front.speech.limits import AudioLimits

Spec = VisionSpec | HearingSpec
Senses = Sight | Hearing


def read_senses(path: Path, config: Mapping[str, Any]) -> Spec | None:
    """Return what a model's files say, None if it takes text alone. Raises ModelInvalid."""
    return read_vision(path, config) or read_hearing(path, config)


@dataclass(frozen=True, slots=True)
class MakeSenses:
    """Makes the eyes or ears of a model."""

    images: ImageLimits
    sounds: AudioLimits
    folder: Path  # where the engine finds files

    def __call__(self, spec: Spec, bos_token: str) -> Senses:
        """Start nothing yet. `bos_token` begins the model's texts; "" = nothing does."""
        if isinstance(spec, VisionSpec):
            return Sight(ImageDesk(spec, self.images, folder=self.folder), bos_token)
        return Hearing(SoundDesk(spec, self.images, self.sounds, folder=self.folder), bos_token)
