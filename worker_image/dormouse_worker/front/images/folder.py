"""Where a front's images lie: engines are told, and nothing is left of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.vision_files import VisionSpec
from dormouse_worker.front.engine.sides import Spawn, SpawnFor
from dormouse_worker.front.images.desk import ImageDesk
from dormouse_worker.front.images.limits import ImageLimits

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder of our own in it, which only we may enter


class ImageFolder:
    """Owns a folder in shared memory, or where temporary files are if there is none."""

    def __init__(self) -> None:
        """Make it."""
        shared = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        self.path = Path(tempfile.mkdtemp(prefix="dormouse-images-", dir=shared))

    def spawning(self, spawn_for: SpawnFor) -> SpawnFor:
        """Return the same, of which engines know the folder. One that the settings name goes first."""

        def spawn(engine: EngineSettings) -> Spawn:
            return spawn_for(replace(engine, image_dir=engine.image_dir or str(self.path)))

        return spawn

    def desk_for(self, engine: EngineSettings, limits: ImageLimits) -> Callable[[VisionSpec], ImageDesk]:
        """Return what makes the desk of a model."""
        return partial(ImageDesk, limits=limits, folder=Path(engine.image_dir or self.path))

    def close(self) -> None:
        """Delete it."""
        shutil.rmtree(self.path, ignore_errors=True)
