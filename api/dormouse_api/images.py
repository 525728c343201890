"""Images, videos and sounds in a conversation: how they come, how many and how large they may be. Decodes none.

Every limit is checked before anything is decoded. What is refused says field, value and limit, and shows nothing of an
image.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from dormouse_api.limits import (
    MAX_AUDIO_BYTES,
    MAX_FPS,
    MAX_FRAMES,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    MIN_FPS,
)
from dormouse_api.v1 import inference_pb2 as pb

DATA = "data:"
DIGEST = "sha256:"  # and 64 hexadecimal digits, in the place of a URL
DIGEST_BYTES = 32
_HEAD_CHARS = 256  # of a data URL, before the comma
FRAMES = "data:video/jpeg;base64,"  # and frames in base64, with commas between them
_VIDEO_KIND = re.compile(r"data:(video/[a-z0-9.+-]{1,32})[;,]")
_FRAMES_ONLY = f"{FRAMES}FRAME,FRAME,…: decode the video and send the frames that count as JPEG"
_BASE64_GROUP = (4, 3)  # so many characters are so many bytes


class BadImage(ValueError):
    """An image, a video or a sound cannot be taken; says its value and the limit."""

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


def frames_from_url(url: str) -> list[bytes]:
    """Return the frames of a data URL in vLLM's form, `data:video/jpeg;base64,FRAME,FRAME,…`. Raises BadImage.

    Nothing else is a video here: there is no decoder of videos.
    """
    if not url.startswith(FRAMES):
        kind = _VIDEO_KIND.match(url)
        raise BadImage(f"a video of the kind {kind[1]}" if kind else "no data URL of frames", _FRAMES_ONLY)
    num_frames = url.count(",")
    if num_frames > MAX_FRAMES:
        raise BadImage(f"{num_frames} frames", f"at most {MAX_FRAMES}")
    return [from_base64(frame) for frame in url[len(FRAMES) :].split(",")]


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


def sound_from_url(url: str) -> bytes:
    """Return the sound that a data URL holds. Raises BadImage; its kind is told by the file."""
    head, comma, data = url.partition(",") if "," in url[:_HEAD_CHARS] else ("", "", "")
    if not (comma and head.startswith(f"{DATA}audio/") and head.endswith(";base64")):
        raise BadImage("no data URL of a sound", "data:audio/KIND;base64,…")
    return from_base64(data, is_sound=True)


def from_base64(data: str, *, is_sound: bool = False) -> bytes:
    """Return the file. Raises BadImage; its size is known before it is decoded."""
    num_chars, num_bytes = _BASE64_GROUP
    size = len(data) // num_chars * num_bytes - 2  # at most two characters fill it up
    (_check_sound_size if is_sound else _check_size)(size)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImage("no base64", "base64 without line ends") from error


def images_of(chat: pb.Chat) -> Iterator[bytes]:
    """Yield the conversation's images in their order."""
    return (part.image for message in chat.messages for part in message.parts if part.WhichOneof("part") == "image")


def videos_of(chat: pb.Chat) -> Iterator[pb.Video]:
    """Yield the conversation's videos in their order."""
    return (part.video for message in chat.messages for part in message.parts if part.WhichOneof("part") == "video")


def frames_of(chat: pb.Chat) -> Iterator[bytes]:
    """Yield the frames of all videos in their order."""
    return (frame for video in videos_of(chat) for frame in video.frames)


def sounds_of(chat: pb.Chat) -> Iterator[bytes]:
    """Yield the conversation's sounds in their order."""
    return (part.audio for message in chat.messages for part in message.parts if part.WhichOneof("part") == "audio")


def num_image_bytes(chat: pb.Chat) -> int:
    """Return how large all images, frames and sounds of a conversation are together."""
    return sum(map(len, [*images_of(chat), *frames_of(chat), *sounds_of(chat)]))


def check_chat_images(chat: pb.Chat) -> None:
    """Raise BadImage for images, videos or sounds of a conversation that are too many, too large, or nothing."""
    images, frames, sounds, num_videos = list(images_of(chat)), list(frames_of(chat)), list(sounds_of(chat)), 0
    for video in videos_of(chat):
        num_videos += 1
        if not video.frames:
            raise BadImage("a video without frames", "at least 1 frame")
        if video.fps and not MIN_FPS <= video.fps <= MAX_FPS:
            raise BadImage(f"a video of {video.fps:g} frames a second", f"{MIN_FPS:g} to {MAX_FPS:g}")
    if len(frames) > MAX_FRAMES:
        raise BadImage(f"{len(frames)} frames", f"at most {MAX_FRAMES} of all videos together")
    counts = {"images": len(images), "videos": num_videos, "sounds": len(sounds)}
    _check_count(counts)
    num_bytes = _checked_bytes([*images, *frames], "an empty image", _check_size)
    _check_total(counts, num_bytes + _checked_bytes(sounds, "an empty sound", _check_sound_size))


def check_images(images: Iterable[bytes]) -> None:
    """Raise BadImage for too many, for one that is empty or too large, and for too much together."""
    files = list(images)
    counts = {"images": len(files)}
    _check_count(counts)
    _check_total(counts, _checked_bytes(files, "an empty image", _check_size))


def in_words(counts: Mapping[str, int]) -> str:
    """Return the names of what there is: "sounds", or "images, videos and sounds"."""
    *before, last = [name for name, count in counts.items() if count] or ["images"]
    return f"{', '.join(before)} and {last}" if before else last


def _check_count(counts: Mapping[str, int]) -> None:
    if (count := sum(counts.values())) > MAX_IMAGES:
        raise BadImage(f"{count} {in_words(counts)}", f"at most {MAX_IMAGES}")


def _check_total(counts: Mapping[str, int], num_bytes: int) -> None:
    if num_bytes > MAX_IMAGES_BYTES:
        raise BadImage(f"{in_words(counts)} of {num_bytes} bytes together", f"at most {MAX_IMAGES_BYTES} bytes")


def _checked_bytes(files: Iterable[bytes], empty: str, check_size: Callable[[int], None]) -> int:
    """Return how large files are together. Raises BadImage for one that is empty, which `empty` names, or too large."""
    total = 0
    for file in files:
        if not file:
            raise BadImage(empty, "the bytes of a file")
        check_size(len(file))
        total += len(file)
    return total


def _check_sound_size(num_bytes: int) -> None:
    if num_bytes > MAX_AUDIO_BYTES:
        raise BadImage(f"a sound of {num_bytes} bytes", f"at most {MAX_AUDIO_BYTES} bytes")


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_IMAGE_BYTES:
        raise BadImage(f"an image of {num_bytes} bytes", f"at most {MAX_IMAGE_BYTES} bytes")


def forget_images(chat: pb.Chat) -> None:
    """Empty the conversation's images, videos and sounds: nobody needs their bytes any more."""
    for message in chat.messages:
        for part in message.parts:
            if (kind := part.WhichOneof("part")) in {"image", "audio"}:
                setattr(part, kind, b"")
    for video in videos_of(chat):
        del video.frames[:]
