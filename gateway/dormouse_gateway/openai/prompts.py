"""What is told of prompts: their text, their tokens, and the log-probabilities of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.shapes import Json, Token, ToldPrompt, finite
from dormouse_gateway.openai.wish import Wish


class Texts(Protocol):
    """Knows what tokens look like, and which tokens text is."""

    async def of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """Return the text of each of these tokens. Raises CallError."""

    async def joined(self, token_ids: Iterable[int]) -> str:
        """Return the text of all of them together. Raises CallError."""

    async def token_ids(self, request: pb.GenerateRequest) -> list[int]:
        """Return the prompt as the model reads it. Raises CallError."""


@dataclass(slots=True)
class Prompts:
    """Collects what workers say of each prompt. The rest is asked of them once it is told, when a worker is awake."""

    wish: Wish
    texts: Texts
    _positions: dict[int, list[pb.PositionLogprobs]] = field(default_factory=dict)
    _told: dict[int, ToldPrompt] = field(default_factory=dict)

    def take(self, message: pb.GenerateResponse) -> None:
        """Remember what a message says of its prompt."""
        if message.prompt_logprobs:
            index = message.choice_index // self.wish.num_choices
            self._positions.setdefault(index, []).extend(message.prompt_logprobs)

    async def of_choice(self, choice_index: int) -> ToldPrompt:
        """Return what is told of the prompt of this choice. Raises CallError."""
        index = choice_index // self.wish.num_choices
        if index not in self._told:
            self._told[index] = await self._tell(self.wish.prompts[index], self._positions.get(index, []))
        return self._told[index]

    async def _tell(self, request: pb.GenerateRequest, positions: Sequence[pb.PositionLogprobs]) -> ToldPrompt:
        wish = self.wish
        with_tokens = wish.echo and wish.with_logprobs
        ids: list[int] = []
        if with_tokens or wish.with_token_ids or wish.with_prompt_logprobs:
            ids = await self.texts.token_ids(request)
        return ToldPrompt(
            text=(request.text or await self.texts.joined(request.token_ids.ids)) if wish.echo else None,
            token_ids=ids if wish.with_token_ids else None,
            tokens=await self._tokens(ids, positions) if with_tokens else None,
            logprobs=await self._logprobs(positions) if wish.with_prompt_logprobs else None,
        )

    async def _tokens(self, ids: Sequence[int], positions: Sequence[pb.PositionLogprobs]) -> list[Token]:
        first = (await self.texts.of(ids[:1]))[ids[0]]
        return [Token(first, None), *await tokens(self.texts, positions)]

    async def _logprobs(self, positions: Sequence[pb.PositionLogprobs]) -> list[Json | None]:
        texts = await self.texts.of(ids_of(positions))
        return [None, *(_by_id(position, texts) for position in positions)]


async def tokens(texts: Texts, positions: Sequence[pb.PositionLogprobs]) -> list[Token]:
    """Return the tokens of these positions. Raises CallError."""
    ids = ids_of(positions)
    known = await texts.of(ids) if ids else {}
    return [_token(position, known) for position in positions]


def ids_of(positions: Iterable[pb.PositionLogprobs]) -> set[int]:
    """Return all tokens that these positions speak of."""
    return {entry.token_id for position in positions for entry in (position.sampled, *position.top, *position.named)}


def _token(position: pb.PositionLogprobs, texts: dict[int, str]) -> Token:
    known = {entry.token_id for entry in position.top}
    named = (entry for entry in position.named if entry.token_id not in known)
    top = [(texts[entry.token_id], entry.logprob) for entry in (*position.top, *named)]
    return Token(texts[position.sampled.token_id], position.sampled.logprob, top)


def _by_id(position: pb.PositionLogprobs, texts: dict[int, str]) -> Json:
    """Return the prompt's token and the likeliest ones by their ids; a rank is known of the likeliest only."""
    ranked = [(entry, rank) for rank, entry in enumerate(position.top, 1)]
    if all(entry.token_id != position.sampled.token_id for entry in position.top):
        ranked.append((position.sampled, None))  # type: ignore[arg-type]  # None: not known
    return {
        str(entry.token_id): {
            "logprob": finite(entry.logprob),
            "rank": rank,
            "decoded_token": texts[entry.token_id],
        }
        for entry, rank in ranked
    }
