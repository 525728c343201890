"""What the image tools read from the environment, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.bootstrap import ROOT, cache_root

REPOSITORY = "ghcr.io/dormouse"  # where releases lie; the names that the chart asks for by default


class ImagesFailed(RuntimeError):
    """Images could not be built or handed over; the text says which step, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the sources and the cache are, and how images reach the cluster."""

    source: Path = ROOT
    cache: Path = Path("/var/cache/dormouse")  # DORMOUSE_CACHE
    context: str = ""  # DORMOUSE_CONTEXT: the user's own cluster; empty = localkube
    registry: str = ""  # DORMOUSE_REGISTRY: host/repository to push to; only with a context
    load_command: str = ""  # DORMOUSE_IMAGE_LOAD: a command that loads the archive {}; only with a context

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings. Raises ImagesFailed if they contradict each other."""
        settings = cls(
            cache=cache_root(),
            context=environment.get("DORMOUSE_CONTEXT", ""),
            registry=environment.get("DORMOUSE_REGISTRY", "").rstrip("/"),
            load_command=environment.get("DORMOUSE_IMAGE_LOAD", ""),
        )
        settings.check()
        return settings

    def check(self) -> None:
        """Raise ImagesFailed, naming the variable, if it is unclear how images reach the cluster."""
        ways = [self.registry, self.load_command]
        if self.context and not any(ways):
            raise ImagesFailed(
                f"DORMOUSE_CONTEXT={self.context} names a cluster of yours: say how it gets images, with "
                "DORMOUSE_REGISTRY=host/repository or DORMOUSE_IMAGE_LOAD='kind load image-archive {}'"
            )
        if self.context and all(ways):
            raise ImagesFailed("DORMOUSE_REGISTRY and DORMOUSE_IMAGE_LOAD are both set: unset one of them")
        if self.load_command and "{}" not in self.load_command:
            raise ImagesFailed(
                f"DORMOUSE_IMAGE_LOAD={self.load_command!r} has no {{}} where the archive's path belongs"
            )

    @property
    def folder(self) -> Path:
        """Return the folder that holds all that these tools make."""
        return self.cache / "images"

    @property
    def storage(self) -> Path:
        """Return buildah's storage (its --root)."""
        return self.folder / "storage"

    @property
    def runtime_state(self) -> Path:
        """Return buildah's state of running builds (its --runroot)."""
        return self.folder / "run"

    @property
    def storage_conf(self) -> Path:
        """Return the file that names both to programs that start buildah themselves (CONTAINERS_STORAGE_CONF)."""
        return self.folder / "storage.conf"

    @property
    def scratch(self) -> Path:
        """Return the folder for files of one run; emptied before each."""
        return self.folder / "tmp"

    @property
    def repository(self) -> str:
        """Return the part of the images' names before operator, gateway and worker."""
        return self.registry if self.context and self.registry else REPOSITORY
