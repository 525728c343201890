"""The first tokens of a text, without tokenizing what will not count. Knows tokenizers, no model.

A tokenizer splits text before it merges: what comes behind a word does not change the tokens some words before it. So
a beginning of the text is tokenized, cut at white space, and a longer one where it has too few tokens.
"""

from __future__ import annotations

from tokenizers import Encoding, Tokenizer

CHARS_PER_TOKEN = 8  # of most text less, so that the first try does
SPARE_TOKENS = 16  # in front of the cut nothing depends on what was cut off


def encode_first(tokenizer: Tokenizer, text: str, max_tokens: int, *, add_special_tokens: bool) -> list[int]:
    """Return at most so many ids, special ones included: the text's first ones, as truncating all of it would give."""
    num_special = tokenizer.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
    room = max(0, max_tokens - num_special)
    encoded = _encode_enough(tokenizer, text, room)
    encoded.truncate(room)
    return list(tokenizer.post_process(encoded, None, add_special_tokens).ids)[:max_tokens]


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
