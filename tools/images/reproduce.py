"""Build parts twice without any cache, and compare what came out digest by digest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest

from tools.images import base, content, wheels
from tools.images.settings import ImagesFailed, Settings
from tools.images.store import Build, Store

PREFIX = "localhost/dormouse/reproduced"  # of names that last as long as the comparison


@dataclass(frozen=True, slots=True)
class Built:
    """The digests of one image: its configuration's, which covers labels, history and layers, and each layer's."""

    config: str
    layers: tuple[str, ...]


def differences(part: str, first: Built, second: Built) -> list[str]:
    """Return a sentence for each digest of a part that differs between two builds."""
    pairs = [("the configuration", first.config, second.config)]
    layers = enumerate(zip_longest(first.layers, second.layers, fillvalue="none"), 1)
    pairs += [(f"layer {number}", one, other) for number, (one, other) in layers]
    return [f"{part}: {what} is {one} once and {other} then" for what, one, other in pairs if one != other]


def reproduce(settings: Settings, store: Store, parts: Iterable[str], say: Callable[[str], None]) -> None:
    """Build every part twice. Raises ImagesFailed, naming what differs, if two builds are not the same."""
    told: list[str] = []
    base_image = base.ensure_base(store, settings, say)
    mounts = wheels.build_mounts(settings, wheels.ensure_wheels(settings, say))
    revision = content.revision(settings.source)  # which may change meanwhile, and is in a label
    for part in parts:
        started = time.monotonic()
        names = [f"{PREFIX}/{part}:{number}" for number in (1, 2)]
        builds = [Build(part, base_image, (name,), mounts, revision, is_cached=False) for name in names]
        try:
            first, second = (build_afresh(settings, store, build) for build in builds)
        finally:
            store.remove([name for name in names if name in store.ids()])
        found = differences(part, first, second)
        told += found
        verdict = "two builds differ" if found else f"two builds are the same, sha256:{first.config}"
        say(f"{part}: {verdict}; {time.monotonic() - started:.0f} s")
    if told:
        raise ImagesFailed("\n".join(told))


def build_afresh(settings: Settings, store: Store, build: Build) -> Built:
    """Build all stages of a part above the base, and return its digests."""
    store.build(build, settings.folder / f"{build.target}-reproduced.log")
    return Built(*store.digests(build.names[0]))
