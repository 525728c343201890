"""Images in a conversation: how they come, how many and how large they may be. Knows no format; decodes no picture.

Every limit is checked before anything is decoded. What is refused says field, value and limit, and shows nothing of an
image.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator

from dormouse_api.limits import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES
from dormouse_api.v1 import inference_pb2 as pb

DATA = "data:"
DIGEST = "sha256:"  # and 64 hexadecimal digits, in the place of a URL
DIGEST_BYTES = 32
_HEAD_CHARS = 256  # of a data URL, before the comma
_BASE64_GROUP = (4, 3)  # so many characters are so many bytes


class BadImage(ValueError):
    """An image cannot be taken; says its value and the limit."""

    def __init__(self, value: str, limit: str) -> None:
        super().__init__(f"{value}; allowed: {limit}")
        self.value = value
        self.limit = limit


def from_data_url(url: str) -> bytes:
    """Return the file that a data URL holds. Raises BadImage."""
    if url.startswith(("https:", "http:")):
        raise BadImage("a URL of a host", "data: URLs; the operator has allowed no hosts")
    head, comma, data = url.partition(",") if "," in url[:_HEAD_CHARS] else ("", "", "")
    kind, *more = head[len(DATA) :].split(";")
    if not (url.startswith(DATA) and comma and kind.startswith("image/") and more and more[-1] == "base64"):
        raise BadImage("no data URL of an image", "data:image/KIND;base64,…")
    return from_base64(data)


def from_digest_url(url: str) -> bytes:
    """Return the digest that stands in the place of a URL. Raises BadImage."""
    try:
        digest = bytes.fromhex(url.removeprefix(DIGEST))
    except ValueError:
        digest = b""
    if not url.startswith(DIGEST) or len(digest) != DIGEST_BYTES:
        raise BadImage("no digest of an image", f"{DIGEST} and {2 * DIGEST_BYTES} hexadecimal digits")
    return digest


def part_of_url(url: str) -> pb.ContentPart:
    """Return the image of a data URL, or the one that a digest in its place names. Raises BadImage."""
    if url.startswith(DIGEST):
        return pb.ContentPart(image_sha256=from_digest_url(url))
    return pb.ContentPart(image=from_data_url(url))


def from_base64(data: str) -> bytes:
    """Return the file. Raises BadImage; its size is known before it is decoded."""
    num_chars, num_bytes = _BASE64_GROUP
    _check_size(len(data) // num_chars * num_bytes - 2)  # at most two characters fill it up
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImage("no base64", "base64 without line ends") from error


def images_of(chat: pb.Chat) -> Iterator[bytes]:
    """Yield the conversation's images in their order."""
    return (part.image for message in chat.messages for part in message.parts if part.WhichOneof("part") == "image")


def num_image_bytes(chat: pb.Chat) -> int:
    """Return how large all images of a conversation are together."""
    return sum(map(len, images_of(chat)))


def check_images(images: Iterable[bytes]) -> None:
    """Raise BadImage for too many, for one that is empty or too large, and for too much together."""
    num_images = total = 0
    for image in images:
        num_images += 1
        total += len(image)
        if not image:
            raise BadImage("an empty image", "the bytes of a file")
        _check_size(len(image))
    if num_images > MAX_IMAGES:
        raise BadImage(f"{num_images} images", f"at most {MAX_IMAGES}")
    if total > MAX_IMAGES_BYTES:
        raise BadImage(f"images of {total} bytes together", f"at most {MAX_IMAGES_BYTES} bytes")


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_IMAGE_BYTES:
        raise BadImage(f"an image of {num_bytes} bytes", f"at most {MAX_IMAGE_BYTES} bytes")


def forget_images(chat: pb.Chat) -> None:
    """Empty the conversation's images: nobody needs their bytes any more."""
    for message in chat.messages:
        for part in message.parts:
            if part.WhichOneof("part") == "image":
                part.image = b""
