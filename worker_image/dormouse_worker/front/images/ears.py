"""Sounds of requests become files for the engine, each a whole window of features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dormouse_worker.common.images import SOUNDS
from dormouse_worker.files.hearing_files import HearingSpec
from dormouse_worker.front.images.files import Key
from dormouse_worker.front.images.held import HeldImages
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.images.making import FileMaker, ImageRefused, Source, files_within, sha256
from dormouse_worker.front.speech.desk import sound_job
from dormouse_worker.front.speech.limits import AudioLimits


class SoundDesk(FileMaker):
    """Everything that a model which hears needs of its front."""

    def __init__(self, spec: HearingSpec, limits: ImageLimits, sounds: AudioLimits, *, folder: Path) -> None:
        """Start nothing yet. `folder`, which must be there, is where the engine finds the files."""
        self.spec = spec
        files = files_within(limits.cache_bytes, folder, SOUNDS)
        setup = {
            "num_mels": spec.num_mels,
            "window_frames": spec.window_frames,
            "least_frames": spec.least_frames,
            "max_seconds": spec.max_seconds,
            "memory_bytes": sounds.memory_bytes,
            "max_file_bytes": min(limits.max_tensor_bytes, files.budget_bytes),
            "seconds": sounds.seconds,
        }
        super().__init__(sound_job(sounds, ImageRefused), setup, limits, files, folder)

    async def hold(self, held: HeldImages, sounds: Sequence[bytes], *, caller: str, salt: str) -> None:
        """Add these sounds, in their order; what was added is to be released also where this fails.

        Raises ImageRefused, and CallError RESOURCE_EXHAUSTED where there is no room.
        """
        held.files = self.files
        with self.room_for(sounds):
            for number, sound in enumerate(sounds, 1):
                source = Source(f"sound {number}", [sound])
                held.sounds.append(await self.take(Key(salt, await sha256(sound)), source, caller))
