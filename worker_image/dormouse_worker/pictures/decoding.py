"""From a file to a picture in RGB, within limits that are checked before it is decoded. Knows no model.

Imported by the image process alone: a decoder reads what anybody sends.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I")  # a channel of 16 bits
_PER_8_BITS = 256


class BadPicture(Exception):
    """A file cannot be used; the message names value and limit, and shows nothing of the picture."""


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """What is decoded at all."""

    max_pixels: int
    num_frames: int = 1  # that are as large as this one, and count together


def decode(file: bytes, limits: PictureLimits) -> Image.Image:
    """Return the picture as it is to be seen: turned as its EXIF says, without alpha, 8 bits. Raises BadPicture."""
    Image.MAX_IMAGE_PIXELS = None  # Pillow warns at its own limit; ours is checked here
    try:
        with Image.open(io.BytesIO(file), formats=FORMATS) as opened:
            _check(opened, limits)
            opened.load()
            turned = ImageOps.exif_transpose(opened)
            return _eight_bits(turned).convert("RGB")
    except BadPicture:
        raise
    except MemoryError as error:
        raise BadPicture("it needs more memory than an image may take") from error
    except Exception as error:  # a decoder fails in any way; what it says may show parts of the file
        raise BadPicture(f"it cannot be decoded ({type(error).__name__}); allowed are {', '.join(FORMATS)}") from error


def _check(opened: Image.Image, limits: PictureLimits) -> None:
    """Raise BadPicture for what the header says."""
    width, height = opened.size
    if width < 1 or height < 1:
        raise BadPicture(f"it is {width} × {height} pixels; allowed: at least 1 × 1")
    if width * height * limits.num_frames > limits.max_pixels:
        many = f" in {limits.num_frames} frames" if limits.num_frames > 1 else ""
        limit = f"{limits.max_pixels} together (--max-image-pixels)"
        raise BadPicture(f"it is {width} × {height} pixels{many}; allowed: {limit}")
    if opened.format != "MPO" and getattr(opened, "is_animated", False):  # MPO: a photograph and its depth
        raise BadPicture("it is animated; allowed: one picture")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return the image with 8 bits a channel: Pillow would cut brighter values off."""
    if image.mode not in _DEEP:
        return image
    return image.convert("I").point(lambda value: value / _PER_8_BITS).convert("L")
