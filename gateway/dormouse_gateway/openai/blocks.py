"""An answer as blocks in their order, for doors that tell it so: thoughts, text, and each call. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from dormouse_gateway.openai.shapes import Piece

Kind = Literal["reasoning", "text", "call"]


@dataclass(frozen=True, slots=True)
class Block:
    """One of them, as far as it is said. Said of a call are its arguments."""

    index: int
    kind: Kind
    said: str = ""
    name: str = ""  # of a call
    id: str = ""  # of a call


@dataclass(frozen=True, slots=True)
class Step:
    """What became of a block, and how it is then."""

    what: Literal["begun", "grown", "ended"]
    block: Block
    new: str = ""


@dataclass(slots=True)
class Blocks:
    """Owns the blocks of one answer. The last one grows until another begins."""

    blocks: list[Block] = field(default_factory=list)

    def take(self, piece: Piece) -> Iterator[Step]:
        """Add a piece."""
        if piece.reasoning:
            yield from self._say("reasoning", piece.reasoning)
        if piece.text:
            yield from self._say("text", piece.text)
        for call in piece.calls:
            if call.name:
                yield from self._begin(Block(len(self.blocks), "call", name=call.name, id=call.id))
            if call.arguments:
                yield self._grow(call.arguments)

    def end(self) -> Iterator[Step]:
        """End the last block; where nothing was said, that is an empty text."""
        if not self.blocks:
            yield from self._begin(Block(0, "text"))
        yield Step("ended", self.blocks[-1])

    def _say(self, kind: Kind, text: str) -> Iterator[Step]:
        if not self.blocks or self.blocks[-1].kind != kind:
            yield from self._begin(Block(len(self.blocks), kind))
        yield self._grow(text)

    def _begin(self, block: Block) -> Iterator[Step]:
        if self.blocks:
            yield Step("ended", self.blocks[-1])
        self.blocks.append(block)
        yield Step("begun", block)

    def _grow(self, text: str) -> Step:
        self.blocks[-1] = replace(self.blocks[-1], said=self.blocks[-1].said + text)
        return Step("grown", self.blocks[-1], text)
