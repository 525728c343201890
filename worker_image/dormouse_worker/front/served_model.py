"""One model as the front serves it: names, card, tokenizer and chat templates together. Slow work runs in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.ipc import EngineStatus
from dormouse_worker.front.answers.registry import BUILT_IN, Families
from dormouse_worker.front.answers.response_template import ResponseTemplate
from dormouse_worker.front.images.held import HeldImages
from dormouse_worker.front.images.making import FileMaker
from dormouse_worker.front.images.senses import Senses
from dormouse_worker.front.images.sight import TEXT_ALONE, PartTokens
from dormouse_worker.front.refusing import refuse, refuse_images
from dormouse_worker.front.speech.desk import SpeechDesk
from dormouse_worker.front.text.chat import TemplateRefused
from dormouse_worker.front.text.chat_arguments import chat_arguments
from dormouse_worker.front.text.chat_checks import check_chat
from dormouse_worker.front.text.deferred_tokenizer import Codec, LateCodec
from dormouse_worker.front.text.grammars import Grammars
from dormouse_worker.front.text.model_card import ModelCard
from dormouse_worker.front.text.renderer import Renderer
from dormouse_worker.front.text.turns import LONG_BYTES, TextWork

T = TypeVar("T")

BYTES_PER_ID = 4  # of text, about: what decoding costs beside encoding


@dataclass(frozen=True, slots=True)
class Model:
    """Everything of a model but its weights."""

    names: tuple[str, ...]  # the first stands in answers and metrics
    card: ModelCard
    codec: Codec
    templates: Renderer
    grammars: Grammars
    work: TextWork
    tool_call_parser: str = ""  # the family by whose rules its answers are read; "" = calls are text
    reasoning_parser: str = ""
    families: Families = BUILT_IN  # that requests may name
    own_answers: ResponseTemplate | None = None  # what the checkpoint says of its answers itself
    senses: Senses | None = None  # None = it takes text alone
    desk_for_sound: SpeechDesk | None = None  # None = its task is another

    async def look(self, chat: pb.Chat, held: HeldImages, *, caller: str, salt: str) -> None:
        """Have what is no text processed, and hold it. Raises CallError INVALID_ARGUMENT, RESOURCE_EXHAUSTED."""
        if self.senses is None:
            refuse_images(chat, "this model sees no images and hears nothing")
        else:
            await self.senses.look(chat, held, caller=caller, salt=salt)

    def image_inputs(self, prompt: Sequence[int], held: HeldImages) -> list[ImageInput]:
        """Return what the engine gets of images, videos and sounds. Raises CallError INVALID_ARGUMENT."""
        return [] if self.senses is None else self.senses.inputs(prompt, held)

    def count_parts(self, prompt: Sequence[int], held: HeldImages, images: Sequence[ImageInput]) -> PartTokens:
        """Return how many of the prompt's tokens stand for images, frames of videos and sounds."""
        return TEXT_ALONE if self.senses is None else self.senses.count(prompt, held, images)

    async def prompt_token_ids(
        self, request: pb.GenerateRequest, caller: str, max_model_len: int, held: HeldImages | None = None
    ) -> list[int]:
        """Return the prompt's ids. Raises CallError INVALID_ARGUMENT if a chat cannot be rendered, or text not fit."""
        kind = request.WhichOneof("prompt")
        if kind == "token_ids":
            return list(request.token_ids.ids)

        def encode(text: str) -> list[int]:
            self._check_fits(f"prompt.{kind}", text, max_model_len)
            return self.codec.encode(text, add_special_tokens=kind == "text" or self._begins_bare(text))

        if kind == "chat":
            return (await self._render(request.chat, caller, encode, held))[1]
        return await self.work.run(partial(encode, request.text), caller=caller, num_bytes=len(request.text))

    def check_stops(self, stops: Sequence[str]) -> None:
        """Refuse stop strings where tokens are no text: they would never match. Raises CallError INVALID_ARGUMENT."""
        if stops and (why := self.codec.why_textless):
            limit = f"none where tokens have no text (stop_token_ids end a sequence, too); {why}"
            refuse("sampling_params.stop", f"{len(stops)} strings", limit)

    async def bad_words_token_ids(self, words: Sequence[str], caller: str) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences that must not be sampled; what the model cannot say anyway is left out."""
        if not words:
            return ()
        found = await self.work.run(
            lambda: [ids for word in words for ids in self.codec.bad_word_token_ids(word)], caller=caller
        )
        return tuple(dict.fromkeys(ids for ids in found if max(ids) < self.card.vocab_size))

    async def prediction_token_ids(self, text: str, caller: str, max_tokens: int) -> list[int]:
        """Return the first ids of an answer's text as it is expected, at most so many."""
        encode = partial(self.codec.encode_first, text, max_tokens, add_special_tokens=False)
        return await self.work.run(encode, caller=caller, num_bytes=len(text))

    async def tokenize(self, request: pb.TokenizeRequest, caller: str) -> pb.TokenizeResponse:
        """Return ids, and for a chat the rendered text. Raises CallError INVALID_ARGUMENT."""
        chosen = request.add_special_tokens if request.HasField("add_special_tokens") else None
        if request.WhichOneof("input") == "chat":
            check_chat(request.chat)
            return await self._tokenize_chat(request, caller)
        encode = partial(self.codec.encode, request.text, add_special_tokens=True if chosen is None else chosen)
        return pb.TokenizeResponse(token_ids=await self.work.run(encode, caller=caller, num_bytes=len(request.text)))

    async def _tokenize_chat(self, request: pb.TokenizeRequest, caller: str) -> pb.TokenizeResponse:
        def encode(text: str) -> list[int]:
            is_told = request.HasField("add_special_tokens")
            adds = request.add_special_tokens if is_told else self._begins_bare(text)
            return self.codec.encode(text, add_special_tokens=adds)

        chat, held = request.chat, HeldImages()
        try:
            await self.look(chat, held, caller=caller, salt="")
            text, ids = await self._render(chat, caller, encode, held)
            self.image_inputs(ids, held)
            return pb.TokenizeResponse(token_ids=ids, rendered_text=text)
        finally:
            held.release()

    def _begins_bare(self, text: str) -> bool:
        return self.senses is not None and self.senses.begins_bare(text)

    async def detokenize(self, request: pb.DetokenizeRequest, caller: str) -> pb.DetokenizeResponse:
        """Return the text of these ids, or of each by itself."""
        ids = list(request.token_ids)
        size = len(ids) * BYTES_PER_ID
        if request.separately:
            texts = await self.work.run(lambda: self._decode_each(ids), caller=caller, num_bytes=size)
            return pb.DetokenizeResponse(token_texts=texts)
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        decode = partial(self.codec.decode, ids, skip_special_tokens=skip)
        return pb.DetokenizeResponse(text=await self.work.run(decode, caller=caller, num_bytes=size))

    async def take_tokenizer(self, engine: EngineStatus) -> None:
        """Load what the engine made for a model without tokenizer.json. Raises ModelInvalid if it is broken."""
        codec = self.codec
        if isinstance(codec, LateCodec):
            await self.work.run(lambda: codec.take(engine))

    def as_told(self, engine: EngineStatus) -> Model:
        """Return the model with the vocabulary that the engine has loaded, and blind where it reads no images.

        Files need not tell either.
        """
        known = engine.model.vocab_size if engine.model is not None else 0
        is_blind = engine.report is not None and not engine.report.image_rows
        senses = None if is_blind else self.senses
        if known in {0, self.card.vocab_size} and senses is self.senses:
            return self
        return replace(self, card=replace(self.card, vocab_size=known or self.card.vocab_size), senses=senses)

    def describe(self, engine: EngineStatus) -> pb.GetModelResponse:
        """Return the model's description; what only the engine knows is 0 until it told it."""
        card, loaded, report = self.card, engine.model, engine.report
        return pb.GetModelResponse(
            name=self.names[0],
            architecture=card.architecture,
            vocab_size=card.vocab_size,
            max_model_len=report.max_model_len if report is not None else card.max_model_len,
            dtype=loaded.dtype if loaded is not None else card.dtype,
            num_layers=card.num_layers,
            num_attention_heads=card.num_attention_heads,
            num_kv_heads=card.num_kv_heads,
            num_parameters=loaded.num_parameters if loaded is not None else 0,
            model_digest=card.digest,
            has_chat_template=bool(self.templates),
            eos_token_ids=card.eos_token_ids,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
            task=card.task,
            embedding_size=loaded.embedding_size if loaded is not None else 0,
            labels=loaded.labels if loaded is not None else (),
            sees_images=self.senses is not None and self.senses.sees_images,
            sees_videos=self.senses is not None and self.senses.sees_videos,
            hears_audio=self.senses is not None and self.senses.hears,
        )

    async def warm(self, engine: EngineStatus) -> None:
        """Have at hand what the first chat needs."""
        await self.templates.warm()
        if (senses := self.as_told(engine).senses) is not None:
            await senses.desk.warm()
        if self.desk_for_sound is not None:
            await self.desk_for_sound.warm()

    def rest(self) -> None:
        """End the processes beside the front that do nothing now; who needs one starts it again."""
        for owner in self._owners():
            owner.rest()

    def close(self) -> None:
        """End the processes beside the front: those that render its chats, compile grammars, decode what it is sent."""
        for owner in self._owners():
            owner.close()

    def _owners(self) -> list[Renderer | Grammars | FileMaker | SpeechDesk]:
        desks = [self.senses.desk] if self.senses else []
        return [self.templates, self.grammars, *desks, *filter(None, [self.desk_for_sound])]

    def _decode_each(self, token_ids: Sequence[int]) -> list[str]:
        return [self.codec.decode([token_id], skip_special_tokens=False) for token_id in token_ids]

    async def rendered(self, chat: pb.Chat, caller: str, then: Callable[[str], T]) -> T:
        """Return what `then` makes of the chat as the model wants it. Raises CallError INVALID_ARGUMENT."""
        try:
            return await self.templates.render(chat_arguments(chat), caller, then)
        except TemplateRefused as error:
            refuse("prompt.chat", "not renderable", str(error))

    async def _render(
        self, chat: pb.Chat, caller: str, encode: Callable[[str], list[int]], held: HeldImages | None = None
    ) -> tuple[str, list[int]]:
        """Return the chat as the model wants it, and its ids. Raises CallError INVALID_ARGUMENT."""

        def then(text: str) -> tuple[str, list[int] | None]:
            if self.senses is not None and held is not None:
                text = self.senses.expanded(text, held)
            return text, None if len(text) > LONG_BYTES else encode(text)  # a long one waits for its turn

        text, ids = await self.rendered(chat, caller, then)
        if ids is None:
            ids = await self.work.run(partial(encode, text), caller=caller, num_bytes=len(text))
        return text, ids

    def _check_fits(self, field: str, text: str, max_model_len: int) -> None:
        """Refuse text that is too long however it is tokenized; 0 = no limit. Raises CallError INVALID_ARGUMENT."""
        is_worth_it = max_model_len and len(text) > LONG_BYTES  # less is tokenized sooner than the bound is known
        if is_worth_it and (bound := self.codec.bound) and (least := bound.min_tokens(text)) >= max_model_len:
            limit = f"below the model length {max_model_len}; no token has more than {bound.bytes_per_token} bytes"
            refuse(field, f"at least {least} tokens", limit, reason=CONTEXT_LENGTH_EXCEEDED)
