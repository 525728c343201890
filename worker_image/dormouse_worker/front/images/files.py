"""Files of processed images in the memory's file system: which are in use, which are kept for the next question.

Pure but for deleting. An image in use is never deleted; of the others those are that were used longest ago. What is
known of one takes a kilobyte or two beside its file, which no budget of files counts: so their number has a limit, too.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dormouse_worker.common.images import IMAGES, Noun
from dormouse_worker.front.images.placeholders import ImageFacts

MOST_FILES = 256  # those in use may be more


class Key(NamedTuple):
    """By what an image is found: who may not share prefixes shares nothing."""

    salt: str
    sha256: bytes  # of the file as it came; of frames
    is_of_several: bool = False  # of images in one chat, where that makes a difference
    num_frames: int = 0  # of the video, of frames that are a step of it


class NoRoom(Exception):
    """Images in use take all that there is; says how much."""


@dataclass(slots=True)
class ProcessedImage:
    """One image as the engine gets it."""

    path: Path
    num_bytes: int
    digest: bytes  # of its pixels, how they are processed, and the salt
    facts: ImageFacts
    num_users: int = 0


class ImageFiles:
    """Owns the files. `take` and `give_back` in pairs."""

    def __init__(self, budget_bytes: int, noun: Noun = IMAGES) -> None:
        """Start with none. `noun` is what messages call them."""
        self.budget_bytes = budget_bytes
        self.noun = noun
        self.num_bytes = 0
        self.num_hits = self.num_queries = 0
        self._known: OrderedDict[Key, ProcessedImage] = OrderedDict()  # the one used last stands last

    def __repr__(self) -> str:
        return f"ImageFiles({len(self._known)} of {self.num_bytes} bytes, {self.used_bytes} in use)"

    @property
    def used_bytes(self) -> int:
        """Return how much is in use."""
        return sum(image.num_bytes for image in self._known.values() if image.num_users)

    @property
    def in_use(self) -> str:
        """Return how much is in use, in words."""
        return f"{self.noun.several} of {self.used_bytes} bytes are in use"

    @property
    def limit(self) -> str:
        """Return the limit in words."""
        return f"the limit is {self.budget_bytes} bytes (--image-cache-bytes, and the pod's /dev/shm)"

    def check_integrity(self) -> None:
        """Recount what is counted along. Raises AssertionError."""
        there = sum(image.num_bytes for image in self._known.values())
        assert there == self.num_bytes, f"{there} bytes are there, {self.num_bytes} were counted"
        assert all(image.num_users >= 0 for image in self._known.values()), "given back more often than taken"

    def check_room(self) -> None:
        """Raise NoRoom where all is in use, before another image is processed."""
        if self.used_bytes >= self.budget_bytes:
            raise NoRoom(f"{self.in_use}; {self.limit}")

    def find(self, key: Key) -> ProcessedImage | None:
        """Return an image and take it, None if it is not there."""
        self.num_queries += 1
        image = self.take(key)
        self.num_hits += image is not None
        return image

    def add(self, key: Key, image: ProcessedImage) -> None:
        """Keep a new image, which nobody uses yet. Raises NoRoom, and then its file is gone."""
        self._evict(self.budget_bytes - image.num_bytes)
        if self.num_bytes + image.num_bytes > self.budget_bytes:
            image.path.unlink(missing_ok=True)
            raise NoRoom(f"{self.in_use} and this one has {image.num_bytes}; {self.limit}")
        self._known[key] = image
        self.num_bytes += image.num_bytes

    def take(self, key: Key) -> ProcessedImage | None:
        """Use an image, None if it is not there."""
        image = self._known.get(key)
        if image is not None:
            image.num_users += 1
            self._known.move_to_end(key)
        return image

    def give_back(self, image: ProcessedImage) -> None:
        """Use it no more."""
        image.num_users -= 1

    def forget(self) -> None:
        """Delete those that nobody uses."""
        self._evict(down_to=-1)

    def clear(self) -> None:
        """Delete all, used or not."""
        for image in self._known.values():
            image.path.unlink(missing_ok=True)
        self._known.clear()
        self.num_bytes = 0

    def _evict(self, down_to: int) -> None:
        for key in [key for key, image in self._known.items() if not image.num_users]:
            if self.num_bytes <= down_to and len(self._known) < MOST_FILES:
                return
            image = self._known.pop(key)
            image.path.unlink(missing_ok=True)
            self.num_bytes -= image.num_bytes
