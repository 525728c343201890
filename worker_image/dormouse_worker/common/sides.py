"""What a model has whose prompts are read by an encoder: how answers begin, and how long both sides may be. Pure.

A sequence of such a model lies in the cache as any other: its source, which the encoder reads whole, filled up to whole
blocks, and behind it the decoder's own tokens.

    [source, padding | opening, output]
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

PADDING = 0  # a token id; nobody reads it


class Sides(msgspec.Struct, frozen=True):
    """A model's two sides, by its files and settings."""

    opening: tuple[int, ...]  # the tokens with which every answer begins; they are no part of the output
    max_source_tokens: int  # of a prompt
    max_target_tokens: int  # of an answer with its opening
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # that its files forbid in each answer


def source_room(num_source_tokens: int, block_size: int) -> int:
    """Return the tokens that a source takes in the cache: whole blocks, which others with the same one share."""
    return -(-num_source_tokens // block_size) * block_size


def joined(source: Sequence[int], opening: Sequence[int], block_size: int) -> list[int]:
    """Return the tokens of a sequence before its output."""
    padding = [PADDING] * (source_room(len(source), block_size) - len(source))
    return [*source, *padding, *opening]
