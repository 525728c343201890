"""What a model that hears makes of a chat with sounds: their places in text and tokens. Raises CallError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from dormouse_api.images import sounds_of
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.images import ImageInput
from dormouse_worker.front.images.ears import SoundDesk
from dormouse_worker.front.images.held import HeldImages
from dormouse_worker.front.images.making import ImageRefused
from dormouse_worker.front.images.placeholders import Said, WrongCount, fill, spans_of
from dormouse_worker.front.images.sight import PartTokens, to_input
from dormouse_worker.front.refusing import refuse, refuse_parts

_LIMIT = "one place for each sound, and no such token in the text"


@dataclass(frozen=True, slots=True)
class Hearing:
    """A model's ears."""

    desk: SoundDesk
    bos_token: str = ""  # "" = its tokenizer has none
    sees_images = False
    sees_videos = False
    hears = True

    async def look(self, chat: pb.Chat, held: HeldImages, *, caller: str, salt: str) -> None:
        """Have the chat's sounds processed, and hold them. Raises CallError INVALID_ARGUMENT, RESOURCE_EXHAUSTED."""
        refuse_parts(chat, ("image", "video"), "text and audio: this model sees nothing")
        try:
            await self.desk.hold(held, list(sounds_of(chat)), caller=caller, salt=salt)
        except ImageRefused as error:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"chat.messages is not to be heard: {error}") from error

    def expanded(self, text: str, held: HeldImages) -> str:
        """Return a rendered chat with what stands for its sounds. Raises CallError INVALID_ARGUMENT."""
        if not held.sounds:
            return text
        marker = self.desk.spec.marker
        try:
            return fill(text, {marker: Said("sounds", [marker * num_rows for num_rows in self._rows(held)])})
        except WrongCount as error:
            refuse("chat.messages", str(error), _LIMIT)

    def inputs(self, prompt: Sequence[int], held: HeldImages) -> list[ImageInput]:
        """Return what the engine gets of sounds. Raises CallError INVALID_ARGUMENT."""
        if not held.sounds:
            return []
        try:
            found = spans_of(prompt, self.desk.spec.token_id, self._rows(held), "sounds")
        except WrongCount as error:
            refuse("chat.messages", str(error), _LIMIT)
        return [to_input(sound, spans) for sound, spans in zip(held.sounds, found, strict=True)]

    def count(self, prompt: Sequence[int], held: HeldImages, sounds: Sequence[ImageInput]) -> PartTokens:
        """Return how many of the prompt's tokens stand for sounds."""
        del prompt, held
        return PartTokens(sounds=sum(sound.num_rows for sound in sounds))

    def begins_bare(self, text: str) -> bool:
        """Return whether a rendered chat lacks the first token, which processors add."""
        return not (self.bos_token and text.startswith(self.bos_token))

    def _rows(self, held: HeldImages) -> list[int]:
        return [self.desk.spec.num_rows(sound.facts.values["num_frames"]) for sound in held.sounds]
