"""Whether a request's images may be computed: the net below what the front has checked. Reads no pixel."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from dormouse_worker.common.images import ImageInput

MAX_IMAGE_BYTES = 1 << 30  # of one file


def why_no_images(images: Sequence[ImageInput], num_prompt_tokens: int, *, max_rows: int, folder: str) -> str | None:
    """Return why these cannot be computed, None = they can. `max_rows` is of one image; 0 = the model reads none."""
    if not images:
        return None
    if not max_rows or not folder:
        return f"the prompt has {len(images)} images; this worker reads none"
    end = 0
    for place, image in enumerate(images):
        why = _misplaced(image, end, num_prompt_tokens) or _too_large(image, max_rows) or _unreadable(image, folder)
        if why:
            return f"images[{place}] {why}"
        end = image.end
    return None


def _misplaced(image: ImageInput, end: int, num_prompt_tokens: int) -> str | None:
    for start, count in image.spans:
        if start < end or count < 1 or start + count > num_prompt_tokens:
            return f"has tokens at [{start}, {start + count}); they may lie in [{end}, {num_prompt_tokens}), ascending"
        end = start + count
    return None if image.spans else "has no tokens"


def _too_large(image: ImageInput, max_rows: int) -> str | None:
    if image.num_rows > max_rows:
        return f"takes {image.num_rows} tokens; the limit is {max_rows}"
    if not 0 < image.num_bytes <= MAX_IMAGE_BYTES:
        return f"takes {image.num_bytes} bytes; the limit is {MAX_IMAGE_BYTES}"
    return None


def _unreadable(image: ImageInput, folder: str) -> str | None:
    if Path(image.tensors).name != image.tensors:
        return "names a file outside the folder of images"
    try:
        found = (Path(folder) / image.tensors).lstat()
    except (OSError, ValueError):
        return "has no file"
    if not stat.S_ISREG(found.st_mode) or found.st_size != image.num_bytes:
        return f"has a file of {found.st_size} bytes; it should have {image.num_bytes}"
    return None
