"""How big the images are over their base, unpacked and to download, and how big they may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tools.images import base, content
from tools.images.build import Names
from tools.images.settings import ImagesFailed
from tools.images.store import Store

MB = 10**6
UNPACKED_BUDGET_BYTES = {"operator": 150 * MB, "gateway": 150 * MB, "worker": 6_500 * MB}  # over the base, as all here
DOWNLOAD_BUDGET_BYTES = {"operator": 150 * MB, "gateway": 150 * MB, "worker": 4_000 * MB}
UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": MB, "GB": 10**9}

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """An image without its base."""

    part: str
    unpacked_bytes: int
    download_bytes: int | None  # None where no registry holds it

    def __str__(self) -> str:
        download = "" if self.download_bytes is None else f", {self.download_bytes / MB:,.0f} MB to download"
        return f"{self.part}: {self.unpacked_bytes / MB:,.0f} MB unpacked{download} (over the base)"


def bytes_of(text: str) -> int:
    """Return the bytes of a size as buildah writes it ("379 MB"). Raises ImagesFailed."""
    found = re.fullmatch(r"([\d.]+)\s*(\w+)", text.strip())
    if not found or found[2] not in UNITS:
        raise ImagesFailed(f"buildah told a size that is none: {text!r}")
    return int(float(found[1]) * UNITS[found[2]])


def download_bytes(manifest: Manifest, num_base_layers: int) -> int:
    """Return the bytes of an image's compressed layers above those of its base."""
    return sum(int(layer["size"]) for layer in manifest["layers"][num_base_layers:])


def sizes(store: Store, names: Names, manifest_of: Callable[[str], Manifest | None]) -> list[Size]:
    """Return the sizes of this tree's images, which must be built; `manifest_of` asks a registry for an image."""
    unpacked, layers = store.sizes(), store.num_layers(base.base_name())
    found = []
    for part in content.PARTS:
        manifest = manifest_of(names.image(part))
        own = bytes_of(unpacked[names.image(part)]) - bytes_of(unpacked[base.base_name()])
        found.append(Size(part, own, None if manifest is None else download_bytes(manifest, layers)))
    return found


def complaints(found: list[Size]) -> list[str]:
    """Return a sentence for each size that is over its budget."""
    measured = [(size.part, "unpacked", size.unpacked_bytes, UNPACKED_BUDGET_BYTES[size.part]) for size in found]
    measured += [
        (size.part, "to download", size.download_bytes, DOWNLOAD_BUDGET_BYTES[size.part])
        for size in found
        if size.download_bytes is not None
    ]
    return [
        f"{part} is {num_bytes:,} bytes {how} over its base; {budget_bytes:,} are allowed"
        for part, how, num_bytes, budget_bytes in measured
        if num_bytes > budget_bytes
    ]
