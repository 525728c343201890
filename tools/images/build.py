"""Build what is missing, in the order of the layers: base, environments, images."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.images import base, content, wheels
from tools.images.room import make_room, prune_localkube
from tools.images.settings import Settings
from tools.images.store import Build, Store

GIB = 2**30
NEEDED_BYTES = {"worker": 18 * GIB, "operator": 2 * GIB, "gateway": 2 * GIB}  # while its environment is being made
KEPT_TAGS = 3  # the newest builds of a source tree that changes; more only fill the disk


@dataclass(frozen=True, slots=True)
class Names:
    """The names of everything that one source tree makes."""

    repository: str
    tag: str  # of the content
    environment_tags: Mapping[str, str]  # part → tag of its Python environment

    @classmethod
    def of(cls, settings: Settings) -> Names:
        """Read the sources and name what they make."""
        tags = {part: content.environment_tag(settings.source, part, base.base_key()) for part in content.PARTS}
        return cls(settings.repository, content.tag(settings.source), tags)

    def image(self, part: str) -> str:
        """Return the full name of a part's image."""
        return f"{self.repository}/{part}:{self.tag}"

    def release(self, part: str) -> str:
        """Return the name under which the chart asks for a part when nobody says otherwise."""
        return f"{self.repository}/{part}:{content.VERSION}"

    def environment(self, part: str) -> str:
        """Return the name that keeps a part's Python environment from being pruned."""
        return f"localhost/dormouse/{part}-env:{self.environment_tags[part]}"

    def needed(self) -> set[str]:
        """Return every name that must stay for the next build to be quick."""
        kinds = (self.image, self.release, self.environment)
        return {base.base_name(), *(name(part) for name in kinds for part in content.PARTS)}


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds the images of one source tree into one storage."""

    settings: Settings
    store: Store
    names: Names
    say: Callable[[str], None]

    def build_missing(self) -> None:
        """Build every image that the storage does not have yet, and let the version's tag name it."""
        missing = self.missing()
        if missing:
            self._build(missing)
            remove_old(self.store, self.names, keep=KEPT_TAGS)
        else:
            self.say(f"images {self.names.tag} are built")
        self._name_release()

    def missing(self) -> list[str]:
        """Return the parts whose image is not in the storage."""
        present = self.store.ids()
        return [part for part in content.PARTS if self.names.image(part) not in present]

    def _build(self, parts: list[str]) -> None:
        self.store.remove_containers()
        clear_scratch(self.settings)
        present = self.store.ids()
        absent = [part for part in parts if self.names.environment(part) not in present]
        make_room(self.settings.folder, sum(NEEDED_BYTES[part] for part in absent), self._prune, self.say)
        base_image = base.ensure_base(self.store, self.settings, self.say)
        mounts = wheels.build_mounts(self.settings, wheels.ensure_wheels(self.settings, self.say))
        for part in parts:
            if self.names.environment(part) not in present:
                self._build_environment(part, base_image, mounts)
            started = time.monotonic()
            revision = content.revision(self.settings.source)
            build = Build(part, base_image, (self.names.image(part),), mounts, revision)
            self.store.build(build, self.settings.folder / f"{part}.log")
            self.say(f"{part}: {self.names.image(part)} built in {time.monotonic() - started:.1f} s")

    def _prune(self) -> None:
        remove_old(self.store, self.names, keep=1)
        if not self.settings.context:
            prune_localkube(self.settings)

    def _build_environment(self, part: str, base_image: str, mounts: Mapping[Path, str]) -> None:
        """Build the stage below the image; it gets a name of its own, so that pruning never costs a rebuild."""
        started = time.monotonic()
        size = " (torch: 6 GB, some minutes)" if part == "worker" else ""
        self.say(f"{part}: installing its Python environment{size}")
        build = Build(f"{part}-env", base_image, (self.names.environment(part),), mounts)
        self.store.build(build, self.settings.folder / f"{part}-env.log")
        self.say(f"{part}: environment ready in {time.monotonic() - started:.0f} s")

    def _name_release(self) -> None:
        present = self.store.ids()
        for part in content.PARTS:
            if present.get(self.names.release(part)) != present[self.names.image(part)]:
                self.store.tag(self.names.image(part), self.names.release(part))


def clear_scratch(settings: Settings) -> None:
    """Remove what a killed run left in the folder for temporary files."""
    shutil.rmtree(settings.scratch, ignore_errors=True)
    settings.scratch.mkdir(parents=True)


def remove_old(store: Store, names: Names, *, keep: int) -> list[str]:
    """Remove builds of other sources but the newest `keep` tags, and environments that today's build does not use."""
    old = old_names(store.names_by_age(), names, keep=keep)
    store.remove(old)
    return old


def old_names(by_age: Iterable[str], names: Names, *, keep: int) -> list[str]:
    """Return the names to remove, given all names, newest first. The current build's always stay."""
    needed = names.needed()
    unneeded = [name for name in by_age if name not in needed]
    builds = dict.fromkeys(tag for tag in map(tag_of, unneeded) if tag.startswith(f"{content.VERSION}-"))
    kept = {names.tag, *[tag for tag in builds if tag != names.tag][: keep - 1]}
    return [name for name in unneeded if tag_of(name) not in kept]


def tag_of(name: str) -> str:
    """Return what follows the colon of an image's name."""
    return name.rpartition(":")[2]
