"""The first tokens of a text, without tokenizing what will not count. Knows tokenizers, no model.

A tokenizer splits text before it merges: what comes behind a word does not change the tokens some words before it. So
a beginning of the text is tokenized, cut at white space, and a longer one where it has too few tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

CHARS_PER_TOKEN = 8  # of most text less, so that the first try does
SPARE_TOKENS = 16  # in front of the cut nothing depends on what was cut off


def encode_first(tokenizer: Tokenizer, text: str, max_tokens: int, *, add_special_tokens: bool) -> list[int]:
    """Return at most so many ids, special ones included: the text's first ones, as truncating all of it would give."""
    num_special = tokenizer.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
    encoded = _first(tokenizer, text, max(0, max_tokens - num_special))
    return list(tokenizer.post_process(encoded, None, add_special_tokens).ids)[:max_tokens]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts as a model reads them together."""

    token_ids: list[int]
    second_start: int  # the place of its first token of the second kind; 0 = its tokenizer knows one kind
    num_document_tokens: int  # of the second text


def encode_pairs(tokenizer: Tokenizer, query: str, documents: Sequence[str], max_tokens: int) -> list[Pair]:
    """Return the query joined with the first so many tokens of each document, 0 = all; special tokens included."""
    first = _encode(tokenizer, query)
    seconds = (
        _first(tokenizer, document, max_tokens) if max_tokens else _encode(tokenizer, document)
        for document in documents
    )
    return [_joined(tokenizer, first, second) for second in seconds]


def _joined(tokenizer: Tokenizer, first: Encoding, second: Encoding) -> Pair:
    joined = tokenizer.post_process(first, second, True)  # noqa: FBT003  the library takes it by place
    if (
        tokenizer.post_processor is None
    ):  # the texts alone, of kinds that are told only where they are encoded as a pair
        return Pair(list(joined.ids), len(first), len(second))
    kinds = list(joined.type_ids)
    return Pair(list(joined.ids), kinds.index(1) if 1 in kinds else 0, len(second))


def _first(tokenizer: Tokenizer, text: str, max_tokens: int) -> Encoding:
    encoded = _encode_enough(tokenizer, text, max_tokens)
    encoded.truncate(max_tokens)
    return encoded


def _encode_enough(tokenizer: Tokenizer, text: str, room: int) -> Encoding:
    num_chars = (room + SPARE_TOKENS) * CHARS_PER_TOKEN
    while num_chars < len(text):
        encoded = _encode(tokenizer, _whole_words(text[:num_chars]))
        if len(encoded) >= room + SPARE_TOKENS:
            return encoded
        num_chars *= 2
    return _encode(tokenizer, text)


def _whole_words(text: str) -> str:
    """Return it without its last word, which is cut; all of it, the space in front too, where it has but one."""
    if not text.strip():
        return ""
    before, *last = text.rsplit(maxsplit=1)
    return before if last else text


def _encode(tokenizer: Tokenizer, text: str) -> Encoding:
    return tokenizer.encode_batch([text], add_special_tokens=False)[0]  # leaves the interpreter to others
