"""Where a front's images and windows of sound lie: engines are told, and nothing is left of it."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.speech_files import SpeechSpec
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.images.senses import MakeSenses
from dormouse_worker.front.sides import Spawn, SpawnFor
from dormouse_worker.front.speech.desk import SpeechDesk
from dormouse_worker.front.speech.limits import AudioLimits

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder of our own in it, which only we may enter


_PREFIX, _LOCK = "dormouse-images-", "lock"


class ImageFolder:
    """Owns a folder in shared memory, or where temporary files are if there is none."""

    def __init__(self) -> None:
        """Make it."""
        root = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
        _sweep(root)
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=root))
        self._lock = (made / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # as long as this process lives
        self.path = made.rename(root / made.name.removeprefix("."))  # nobody sees it unlocked

    def spawning(self, spawn_for: SpawnFor) -> SpawnFor:
        """Return the same, of which engines know the folder. One that the settings name goes first."""

        def spawn(engine: EngineSettings) -> Spawn:
            return spawn_for(replace(engine, image_dir=engine.image_dir or str(self.path)))

        return spawn

    def senses_for(self, engine: EngineSettings, images: ImageLimits, sounds: AudioLimits) -> MakeSenses:
        """Return what makes the eyes or ears of a model."""
        return MakeSenses(images, sounds, Path(engine.image_dir or self.path))

    def desk_for_sound(self, engine: EngineSettings, limits: AudioLimits) -> Callable[[SpeechSpec], SpeechDesk]:
        """Return what makes the desk of a model that reads sound."""
        return partial(SpeechDesk, limits=limits, folder=Path(engine.image_dir or self.path))

    def close(self) -> None:
        """Delete it."""
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Delete folders of fronts that died: what lies in shared memory outlives a container."""
    for path in root.glob(f"{_PREFIX}*"):
        with suppress(OSError), (path / _LOCK).open("rb+") as lock:  # in use, or another user's
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
