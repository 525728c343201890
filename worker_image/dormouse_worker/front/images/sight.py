"""What a model that sees makes of a chat with images: their places in text and tokens. Raises CallError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from dormouse_api.images import images_of
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.ipc import EngineStatus
from dormouse_worker.front.images.desk import HeldImages, ImageDesk, ImageRefused
from dormouse_worker.front.images.placeholders import WrongCount, expand, find_spans
from dormouse_worker.front.requests.validation import refuse

_LIMIT = "one place for each image, and no such token in the text"


@dataclass(frozen=True, slots=True)
class Sight:
    """A model's eyes, and how its prompts begin."""

    desk: ImageDesk
    bos_token: str = ""  # "" = its tokenizer has none

    async def look(self, chat: pb.Chat, held: HeldImages, *, caller: str, salt: str) -> None:
        """Have the chat's images processed, and hold them. Raises CallError INVALID_ARGUMENT, RESOURCE_EXHAUSTED."""
        try:
            await self.desk.hold(held, list(images_of(chat)), caller=caller, salt=salt)
        except ImageRefused as error:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"chat.messages is not to be seen: {error}") from error

    def expanded(self, text: str, held: HeldImages) -> str:
        """Return a rendered chat with what stands for its images. Raises CallError INVALID_ARGUMENT."""
        if not held.images:
            return text
        try:
            return expand(text, self.desk.spec, held.facts)
        except WrongCount as error:
            refuse("chat.messages", str(error), _LIMIT)

    def inputs(self, prompt: Sequence[int], held: HeldImages) -> list[ImageInput]:
        """Return what the engine gets of the images. Raises CallError INVALID_ARGUMENT."""
        if not held.images:
            return []
        try:
            spans = find_spans(prompt, self.desk.spec, held.facts)
        except WrongCount as error:
            refuse("chat.messages", str(error), _LIMIT)
        return [
            ImageInput(image.digest, where, image.path.name, image.num_bytes, image.facts.grid)
            for image, where in zip(held.images, spans, strict=True)
        ]

    def begins_bare(self, text: str) -> bool:
        """Return whether a rendered chat lacks the first token: transformers' processors, unlike tokenizers, add it."""
        return not (self.bos_token and text.startswith(self.bos_token))


def check_rows(images: Sequence[ImageInput], engine: EngineStatus) -> None:
    """Raise CallError INVALID_ARGUMENT for an image that the engine has no room for, where it told how much it has."""
    most = engine.report.image_rows if engine.report is not None else 0
    for place, image in enumerate(images):
        if most and image.num_rows > most:
            refuse(f"chat.messages: image {place + 1}", f"{image.num_rows} tokens", f"at most {most}")
