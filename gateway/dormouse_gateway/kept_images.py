"""Images that came whole, kept for later requests that name them by digest: of each owner apart, bounded in bytes.

An owner is who shares cached prefixes (`clients/salts.py`): nobody learns whether somebody else sent an image, nor gets
it. Who holds most makes room for others, so that nobody can send another one's images away as long as he has fewer.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Any

import grpc

from dormouse_api.images import DIGEST, DIGEST_BYTES, BadImage, check_images
from dormouse_api.status import IMAGE_UNKNOWN, CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.salts import Salts

OVERHEAD_BYTES = 512  # counted of each image beside its file
_SEND = "send the image whole"


class KeptImages:
    """Owns the files."""

    def __init__(self, budget_bytes: int, salts: Salts) -> None:
        """Start with none; `budget_bytes` 0 = none is kept."""
        self._budget_bytes = budget_bytes
        self._salts = salts
        self._images: dict[str, OrderedDict[bytes, bytes]] = {}  # by owner and digest; the one used last stands last
        self._num_bytes: dict[str, int] = {}  # by owner

    def __repr__(self) -> str:
        return (
            f"KeptImages({sum(map(len, self._images.values()))} of {len(self._images)} owners, {self.num_bytes} bytes)"
        )

    @property
    def num_bytes(self) -> int:
        """Return what all take."""
        return sum(self._num_bytes.values())

    def fill(self, chat: pb.Chat, given: Any) -> None:
        """Put images that are kept in the place of their digests, and keep those that came whole.

        `given` is the call's metadata. Raises CallError INVALID_ARGUMENT with the reason IMAGE_UNKNOWN for a digest of
        none, and for images that are too many or too large.
        """
        parts = [part for message in chat.messages for part in message.parts]
        named = [part for part in parts if part.WhichOneof("part") == "image_sha256"]
        whole = [part.image for part in parts if part.WhichOneof("part") == "image"]
        if not named and not (whole and self._budget_bytes):
            return
        owner = self._salts.salt(given)
        found = [self._find(owner, part.image_sha256) for part in named]
        try:
            check_images([*whole, *found])
        except BadImage as error:
            raise _refusal(str(error)) from error
        for part, image in zip(named, found, strict=True):
            part.image = image
        for image in whole:
            self._keep(owner, image)

    def _find(self, owner: str, digest: bytes) -> bytes:
        if len(digest) != DIGEST_BYTES:
            raise _refusal(f"an image by a digest of {len(digest)} bytes; allowed: {DIGEST_BYTES}, SHA-256 of its file")
        images = self._images.get(owner)
        if images is None or digest not in images:
            name = f"the image {DIGEST}{digest.hex()}, which is not known here"
            limit = (
                "what you sent this gateway lately" if self._budget_bytes else "none (DORMOUSE_KEPT_IMAGE_BYTES is 0)"
            )
            raise _refusal(f"{name}; allowed: {limit}; {_SEND}", IMAGE_UNKNOWN)
        images.move_to_end(digest)
        return images[digest]

    def _keep(self, owner: str, image: bytes) -> None:
        if _size(image) > self._budget_bytes:
            return
        digest, images = sha256(image).digest(), self._images.setdefault(owner, OrderedDict())
        if digest not in images:
            images[digest] = image
            self._num_bytes[owner] = self._num_bytes.get(owner, 0) + _size(image)
        images.move_to_end(digest)
        while self.num_bytes > self._budget_bytes:
            self._evict(max(self._num_bytes, key=self._num_bytes.__getitem__))

    def _evict(self, owner: str) -> None:
        """Forget the image of this owner that was used longest ago."""
        _, image = self._images[owner].popitem(last=False)
        self._num_bytes[owner] -= _size(image)
        if not self._images[owner]:
            del self._images[owner], self._num_bytes[owner]


def _size(image: bytes) -> int:
    return len(image) + OVERHEAD_BYTES


def _refusal(why: str, reason: str = "") -> CallError:
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, f"chat.messages is {why}", reason=reason)
