"""How much text can fit a number of tokens at all, where that can be proved of a tokenizer. Pure.

Behind the normalizer every byte belongs to some token, and no token has more bytes than the longest one of the
vocabulary. That holds where nothing drops text: no pre-tokenizer that removes what it splits at, and a vocabulary that
has a token for every byte. A normalizer may shrink text by no more than a factor that is known. White space beside an
added token may be swallowed by it, so where such tokens are there, white space is not counted.
For all other tokenizers (WordPiece: a word of any length is one [UNK]; SentencePiece's own normalization; stripping)
there is no bound, and none is claimed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models

from dormouse_worker.front.text.decoding import byte_alphabet

# By how much a normalizer can shrink UTF-8: decomposing at most 3 times (KELVIN SIGN), with compatibility 4 (bold
# letters); composing at most 3 times (Hangul).
SHRINKS = {"NFD": 3, "NFKD": 4, "NFC": 9, "NFKC": 12, "Lowercase": 3, "Prepend": 1}
MAX_GROWTH = 12  # of an added token's text, where it is sought in normalized text: 11 for one Arabic ligature
KEEPING = {"ByteLevel", "Metaspace", "Digits"}  # pre-tokenizers that drop nothing
SPLITTING = {"Split", "Punctuation"}  # they drop what they split at if they are told to


@dataclass(frozen=True, slots=True)
class TextBound:
    """No text of more than `bytes_per_token` × n bytes has only n tokens."""

    bytes_per_token: int
    counts_space: bool  # else white space is left out of the count

    def min_tokens(self, text: str) -> int:
        """Return how many tokens the text has at least."""
        counted = text if self.counts_space else "".join(text.split())
        return math.ceil(len(counted.encode()) / self.bytes_per_token)


def bound_of(tokenizer: Tokenizer) -> TextBound | None:
    """Return what is sure of this tokenizer, None if nothing is. Takes as long as it takes to list the vocabulary."""
    parts = _parts(tokenizer.pre_tokenizer, "pretokenizers")
    shrink = _shrink(_parts(tokenizer.normalizer, "normalizers"))
    if shrink is None or not all(_keeps(part) for part in parts):
        return None
    is_byte_level = any(part["type"] == "ByteLevel" for part in parts)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if not _has_every_byte(tokenizer.model, vocabulary, is_byte_level=is_byte_level):
        return None
    longest = max(len(word) if is_byte_level else len(word.encode()) for word in vocabulary)
    added = tokenizer.get_added_tokens_decoder().values()
    sizes = (len(token.content.encode()) * (MAX_GROWTH if token.normalized else 1) for token in added)
    swallows = any(token.lstrip or token.rstrip for token in added)
    return TextBound(shrink * max(longest, *sizes, 1), counts_space=not swallows)


def _parts(component: Any, inside: str) -> list[Mapping[str, Any]]:
    """Return the steps of a component as they stand in tokenizer.json; nested ones are of type Sequence."""
    if component is None:
        return []
    state: Mapping[str, Any] = json.loads(component.__getstate__())
    return list(state[inside]) if state["type"] == "Sequence" else [state]


def _shrink(normalizers: Sequence[Mapping[str, Any]]) -> int | None:
    """Return by how much text may become shorter, None if there is no limit."""
    factor = 1
    for part in normalizers:
        step = _replacing(part) if part["type"] == "Replace" else SHRINKS.get(part["type"])
        if step is None:
            return None
        factor *= step
    return factor


def _replacing(part: Mapping[str, Any]) -> int | None:
    pattern, content = part["pattern"].get("String", ""), part["content"]
    if not (pattern and content):
        return None
    return max(1, math.ceil(len(pattern.encode()) / len(content.encode())))


def _keeps(part: Mapping[str, Any]) -> bool:
    """Return whether a pre-tokenizer leaves every byte in some piece."""
    return part["type"] in KEEPING or (part["type"] in SPLITTING and part["behavior"] != "Removed")


def _has_every_byte(model: Any, vocabulary: Mapping[str, int], *, is_byte_level: bool) -> bool:
    """Return whether there is a token for each byte, so that nothing is unknown: that could be of any length."""
    if not isinstance(model, models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    if is_byte_level:
        return byte_alphabet().keys() <= vocabulary.keys()
    return bool(model.byte_fallback) and {f"<0x{byte:02X}>" for byte in range(256)} <= vocabulary.keys()
