"""Images, videos and sounds in a body: where each API has them, and their bytes instead. Limits before decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dormouse_api.images import (
    DIGEST,
    FRAMES,
    BadImage,
    frames_from_url,
    from_base64,
    from_data_url,
    from_digest_url,
    in_words,
    sound_from_url,
)
from dormouse_api.limits import MAX_FPS, MAX_IMAGES, MAX_IMAGES_BYTES, MIN_FPS
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import refuse
from dormouse_gateway.openai.schema_kit import Json, fields, kind, number, one_of, only, or_null, text
from dormouse_gateway.openai.turns import joined

TAKEN = "picture"  # the field of a part that holds the bytes; bodies cannot have it, for schemas do not
NAMED = "picture_sha256"  # the same for an image that came by its digest
FILMED = "film"  # the same for a video
HEARD = "sound"  # the same for a sound
_IMAGE_FIELDS = {TAKEN: "image", NAMED: "image_sha256", FILMED: "video", HEARD: "audio"}  # of a ContentPart
_TELLING = frozenset({"image_url", "video_url", "input_audio", "audio_url", "source"})  # fields that tell the bytes
SOUND_FORMATS = ("wav", "mp3", "flac", "ogg", "webm")
_BASE64_GAIN = 0.75
_HOSTED = ("https:", "http:")

Fetch = Callable[[str], Awaitable[bytes]]
_DETAIL = or_null(only("auto", "An image is seen as the model's own processor makes it."))
URL = text(1) | {
    "description": "data:image/KIND;base64,… of PNG, JPEG, WebP, GIF or BMP; https: of hosts that the operator "
    f"allows; {DIGEST} and the digest of a file that was sent before, where the operator lets the gateway keep images."
}

CHAT_IMAGE = kind("image_url", {"image_url": fields({"url": URL, "detail": _DETAIL}, "url")}, "image_url")
VIDEO_URL = text(1) | {
    "description": f"{FRAMES}FRAME,FRAME,…: JPEG files in base64, all of one size, as vLLM takes them."
}
_VIDEO = {
    "url": VIDEO_URL,
    "fps": or_null(number(MIN_FPS, MAX_FPS) | {"description": "How many of these frames show one second; 1 if unset."}),
}
CHAT_VIDEO = kind("video_url", {"video_url": fields(_VIDEO, "url")}, "video_url")
BASE64 = text(1) | {"description": "The file in base64, without line ends."}
_SOUND = {
    "data": BASE64,
    "format": {"enum": [*SOUND_FORMATS], "description": "For people: the file itself tells its kind."},
}
CHAT_SOUND = kind("input_audio", {"input_audio": fields(_SOUND, "data", "format")}, "input_audio")
SOUND_URL = text(1) | {"description": "data:audio/KIND;base64,… of the same files, as vLLM takes them."}
CHAT_SOUND_URL = kind("audio_url", {"audio_url": fields({"url": SOUND_URL}, "url")}, "audio_url")
RESPONSES_IMAGE = kind("input_image", {"image_url": URL, "detail": _DETAIL}, "image_url")
_MEDIA = {"enum": ["image/jpeg", "image/png", "image/gif", "image/webp"]}
_SOURCE = one_of(
    kind("base64", {"media_type": _MEDIA, "data": BASE64}, "media_type", "data"), kind("url", {"url": URL}, "url")
)


def messages_image(**more: Json) -> Json:
    """Return an image as Anthropic's API has it."""
    return kind("image", {"source": _SOURCE, **more}, "source")


@dataclass(frozen=True, slots=True)
class Place:
    """An image, a video or a sound in a body."""

    part: dict[str, Any]
    path: str  # of the part

    @property
    def source(self) -> tuple[str, str, bool]:
        """Return the path of what tells the image, what it tells, and whether that is a URL."""
        match self.part["type"]:
            case "image_url":
                return f"{self.path}.image_url.url", self.part["image_url"]["url"], True
            case "video_url":
                return f"{self.path}.video_url.url", self.part["video_url"]["url"], False
            case "audio_url":
                return f"{self.path}.audio_url.url", self.part["audio_url"]["url"], False
            case "input_audio":
                return f"{self.path}.input_audio.data", self.part["input_audio"]["data"], False
            case "input_image":
                return f"{self.path}.image_url", self.part["image_url"], True
        source = self.part["source"]
        is_url = source["type"] == "url"
        name = "url" if is_url else "data"
        return f"{self.path}.source.{name}", source[name], is_url

    def put(self, image: bytes | pb.Video, name: str = TAKEN) -> None:
        """Put the bytes in the place of what told them."""
        kept = {name: value for name, value in self.part.items() if name not in _TELLING}
        self.part.clear()
        self.part.update(kept | {name: image})


_KINDS = {  # of parts, and what each has, in the order in which messages name them
    **dict.fromkeys(("image_url", "input_image", "image"), "images"),
    "video_url": "videos",
    **dict.fromkeys(("input_audio", "audio_url"), "sounds"),
}


def places(body: Mapping[str, Any]) -> Iterator[Place]:
    """Yield all images, videos and sounds of a checked body: of its messages, or of its input."""
    for name in ("messages", "input"):
        turns = body.get(name)
        for index, turn in enumerate(turns if isinstance(turns, list) else ()):
            if isinstance(turn, dict):
                yield from _within(turn, f"{name}[{index}]")


def _within(said: Mapping[str, Any], path: str) -> Iterator[Place]:
    for name in ("content", "output"):  # of a turn; of a function's result
        parts = said.get(name)
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            where = f"{path}.{name}[{index}]"
            if not isinstance(part, dict):
                continue
            if part.get("type") in _KINDS:
                yield Place(part, where)
            elif part.get("type") == "tool_result":
                yield from _within(part, where)


def is_fetched(place: Place) -> bool:
    """Return whether an image has to be fetched from a host."""
    _, told, is_url = place.source
    return is_url and told.startswith(_HOSTED)


def is_named(place: Place) -> bool:
    """Return whether an image is only named, by its digest."""
    _, told, is_url = place.source
    return is_url and told.startswith(DIGEST)


@dataclass(slots=True)
class Pictures:
    """The images, videos and sounds of one body."""

    found: list[Place] = field(default_factory=list)
    named: str = "images"  # what they are, in words

    @classmethod
    async def take(cls, body: Mapping[str, Any], fetch: Fetch) -> Pictures:
        """Decode all images of a body, in it, and fetch others. Raises ApiError naming the first that cannot be had."""
        found = list(places(body))
        taken = cls(found, _named(found))
        taken.check()
        total = 0
        for place in taken.found:
            path, _, _ = place.source
            try:
                total += await _put(place, fetch)
            except BadImage as error:
                raise refuse(path, error.value, error.limit) from error
            taken.check_total(path, total)
        return taken

    def check(self) -> None:
        """Raise ApiError for too many, or too much together."""
        if len(self.found) > MAX_IMAGES:
            value = f"the last of {MAX_IMAGES + 1} {self.named}"
            raise refuse(self.found[MAX_IMAGES].path, value, f"at most {MAX_IMAGES}")
        total = 0
        for place in self.found:
            path, told, _ = place.source
            total += int(len(told) * _BASE64_GAIN)
            self.check_total(path, total)

    def check_total(self, path: str, total: int) -> None:
        """Raise ApiError naming the one that is too much."""
        if total > MAX_IMAGES_BYTES:
            raise refuse(path, f"the last of {total} bytes of {self.named}", f"{MAX_IMAGES_BYTES} bytes together")

    def clear(self) -> None:
        """Forget their bytes, which are in the request by now."""
        for place in self.found:
            for name in place.part.keys() & {TAKEN, HEARD}:
                place.part[name] = b""
            if FILMED in place.part:
                place.part[FILMED].Clear()


def _named(found: list[Place]) -> str:
    counts = Counter(_KINDS[place.part["type"]] for place in found)
    return in_words({name: counts[name] for name in dict.fromkeys(_KINDS.values())})


async def _put(place: Place, fetch: Fetch) -> int:
    """Put the bytes in the place of what tells them; return how many they are. Raises BadImage, ApiError."""
    _, told, is_url = place.source
    name = TAKEN
    match place.part["type"]:
        case "video_url":
            return _put_video(place)
        case "audio_url":
            file, name = sound_from_url(told), HEARD
        case "input_audio":
            file, name = from_base64(told, is_sound=True), HEARD
        case _ if is_named(place):
            place.put(from_digest_url(told), NAMED)
            return 0
        case _ if is_fetched(place):
            file = await fetch(told)
        case _:
            file = from_data_url(told) if is_url else from_base64(told)
    place.put(file, name)
    return len(file)


def _put_video(place: Place) -> int:
    """Put a video's frames in the place of its URL; return how large they are together. Raises BadImage."""
    said = place.part["video_url"]
    frames = frames_from_url(said["url"])
    place.put(pb.Video(frames=frames, fps=said.get("fps") or 0), FILMED)
    return sum(map(len, frames))


def say(turn: pb.ChatMessage, content: Any) -> pb.ChatMessage:
    """Have the turn say text, or parts of it joined by line ends; with images among them, each part by itself."""
    if not any(_IMAGE_FIELDS.keys() & part.keys() for part in content or () if isinstance(part, dict)):
        turn.content = joined(content)
        return turn
    for part in content:
        image = next(({field: part[name]} for name, field in _IMAGE_FIELDS.items() if name in part), None)
        turn.parts.add(**(image or {"text": part["text"]}))
    return turn
