"""Tokens become text one at a time, in bounded memory: at most three bytes of an unfinished character wait. Pure.

What the pieces make together is what the whole would be. How that can be known depends on the tokenizer's decoder:

| decoder | a token is | who decodes |
|---|---|---|
| ByteLevel | bytes, whatever stands around it | `ByteDecoder` |
| WordPiece, Metaspace, none, chains with byte fallback | a text, another one at the begin; a byte | `PieceDecoder` |
| anything else: it may look back or ahead | known only in its surroundings | `WindowDecoder` |
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol

REPLACEMENT = "\ufffd"  # stands for bytes that are no character
MAX_WAITING_TOKENS = 8  # in a window: so many are decoded over and over while they end within a character
NUM_ANCHORS_TRIED = 4096  # tokens, until one is found behind which others show what they are

Decode = Callable[[Sequence[int]], str]


class Decoder(Protocol):
    """Turns one sequence's tokens into text, one at a time."""

    def step(self, token_id: int) -> str:
        """Return the text that this token completed; "" while a character is incomplete."""

    def flush(self) -> str:
        """Return what stands for the bytes that still wait: the sequence has ended. Once, and last."""


class Words(Protocol):
    """What is asked of a tokenizer."""

    def id_to_token(self, id: int) -> str | None:  # noqa: A002  the library's own name
        """Return how a token is written, None if it is not known."""


def byte_alphabet() -> dict[str, int]:
    """Return the letters with which byte-level vocabularies write bytes, as GPT-2 chose them."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


def decoder_parts(decoder: Any) -> list[Mapping[str, Any]]:
    """Return what a tokenizer's decoder does, step by step, as it stands in tokenizer.json; [] where there is none."""
    if decoder is None:
        return []
    state: Mapping[str, Any] = json.loads(decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def is_byte_level(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every token is bytes, whatever stands around it."""
    return [part["type"] for part in parts] == ["ByteLevel"]


def is_piecewise(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every token is a text or a byte, and only the first one is told apart."""
    kinds = [part["type"] for part in parts]
    if kinds in ([], ["WordPiece"]):
        return True
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    return all(_is_local(part, is_fused=number > fused) for number, part in enumerate(parts))


def falls_back_to_bytes(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether tokens like <0xE4> are bytes."""
    return any(part["type"] == "ByteFallback" for part in parts)


def _is_local(part: Mapping[str, Any], *, is_fused: bool) -> bool:
    """Return whether a step of a chain looks at one character at a time, or at the first one only."""
    kind = part["type"]
    if kind == "Strip":
        return is_fused and len(part["content"]) == 1 and part["start"] <= 1 and part["stop"] == 0
    if kind == "Replace":
        return not is_fused and len(part["pattern"].get("String", "")) == 1
    return kind in {"ByteFallback", "Fuse"} or (kind == "Metaspace" and not is_fused)


class TokenBytes:
    """What each token of a byte-level vocabulary stands for; looked up once. Sequences share it."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._alphabet = byte_alphabet()
        self._known: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"TokenBytes({len(self._known)} looked up)"

    def __getitem__(self, token_id: int) -> bytes:
        """Return the bytes; none for a token that the tokenizer does not know."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._look_up(token_id)
        return found

    def _look_up(self, token_id: int) -> bytes:
        word = self._words.id_to_token(token_id) or ""
        letters = [self._alphabet.get(letter) for letter in word]
        whole = [byte for byte in letters if byte is not None]
        return bytes(whole) if len(whole) == len(letters) else word.encode()  # an added token is written as it is


class ByteDecoder:
    """Implements `Decoder` where tokens are bytes."""

    def __init__(self, token_bytes: TokenBytes, skipped: Set[int]) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> str:
        """See `Decoder`."""
        return "" if token_id in self._skipped else self._utf8.decode(self._token_bytes[token_id])

    def flush(self) -> str:
        """See `Decoder`."""
        return self._utf8.decode(b"", final=True)


class TokenPieces:
    """What each token says at the begin of a text and behind others; the latter looked up once. Sequences share it."""

    def __init__(self, words: Words, decode: Decode, anchor: int, *, has_bytes: bool) -> None:
        """`anchor` is a token behind which others show what they are; see `find_anchor`."""
        self._words = words
        self._decode = decode
        self._anchor = anchor
        self._num_anchor_chars = len(decode([anchor]))
        self._has_bytes = has_bytes
        self._later: dict[int, str] = {}
        self._bytes: dict[int, int | None] = {}

    def __repr__(self) -> str:
        return f"TokenPieces({len(self._later)} looked up)"

    def is_known(self, token_id: int) -> bool:
        """Return whether the tokenizer knows it; others are passed over."""
        return token_id in self._later or self._words.id_to_token(token_id) is not None

    def byte(self, token_id: int) -> int | None:
        """Return the byte that the token is, None if it is a text."""
        if not self._has_bytes:
            return None
        if token_id not in self._bytes:
            self._bytes[token_id] = _written_byte(self._words.id_to_token(token_id) or "")
        return self._bytes[token_id]

    def text(self, token_ids: Sequence[int], *, is_first: bool) -> str:
        """Return the text of one token, or of the bytes of one character."""
        if is_first:
            return self._decode(token_ids)
        if len(token_ids) > 1:
            return self._behind_anchor(token_ids)
        found = self._later.get(token_ids[0])
        if found is None:
            found = self._later[token_ids[0]] = self._behind_anchor(token_ids)
        return found

    def _behind_anchor(self, token_ids: Sequence[int]) -> str:
        return self._decode([self._anchor, *token_ids])[self._num_anchor_chars :]


def find_anchor(decode: Decode, token_ids: Iterable[int]) -> int | None:
    """Return the first of these tokens that has a text and keeps it when it is said twice."""
    for _, token_id in zip(range(NUM_ANCHORS_TRIED), token_ids, strict=False):
        text = decode([token_id])
        if text and REPLACEMENT not in text and decode([token_id, token_id]).startswith(text):
            return token_id
    return None


class PieceDecoder:
    """Implements `Decoder` where tokens are texts, or bytes of which whole characters are made.

    A byte that belongs to no character is one U+FFFD. The characters beside it stay what they are: the library would
    give a U+FFFD for each byte of them too, however long ago they were said.
    """

    def __init__(self, pieces: TokenPieces, skipped: Set[int], prompt_token_ids: Iterable[int] = ()) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._is_first = not any(not self._passes_over(token_id) for token_id in prompt_token_ids)
        self._waiting: list[int] = []  # tokens: the begin of a character
        self._waiting_bytes = b""

    def step(self, token_id: int) -> str:
        """See `Decoder`."""
        if self._passes_over(token_id):
            return ""
        byte = self._pieces.byte(token_id)
        if byte is None:
            return self.flush() + self._text([token_id])
        self._waiting.append(token_id)
        self._waiting_bytes += bytes([byte])
        return self._take_whole()

    def flush(self) -> str:
        """See `Decoder`."""
        text = "".join(self._text([token_id]) for token_id in self._waiting)
        self._waiting, self._waiting_bytes = [], b""
        return text

    def _passes_over(self, token_id: int) -> bool:
        return token_id in self._skipped or not self._pieces.is_known(token_id)

    def _take_whole(self) -> str:
        """Return what the bytes that wait make, but for the begin of a character."""
        text = ""
        while self._waiting and (size := _take(self._waiting_bytes)):
            text += self._text(self._waiting[:size])
            self._waiting, self._waiting_bytes = self._waiting[size:], self._waiting_bytes[size:]
        return text

    def _text(self, token_ids: Sequence[int]) -> str:
        text = self._pieces.text(token_ids, is_first=self._is_first)
        self._is_first = False
        return text


class WindowDecoder:
    """Implements `Decoder` for every other tokenizer: decodes what waits together with what came before it.

    A decoder that rewrites what was said long ago, or a window that never ends with a whole character, gives what the
    window alone would.
    """

    def __init__(self, decode: Decode, prompt_token_ids: Sequence[int] = (), skipped: Set[int] = frozenset()) -> None:
        self._decode = decode
        self._skipped = skipped
        before = [token_id for token_id in prompt_token_ids[-MAX_WAITING_TOKENS:] if token_id not in skipped]
        self._before = before if before and REPLACEMENT not in decode(before) else []
        self._waiting: list[int] = []

    def step(self, token_id: int) -> str:
        """See `Decoder`."""
        if token_id in self._skipped:
            return ""
        self._waiting.append(token_id)
        text = self._text()
        is_complete = text and not text.endswith(REPLACEMENT)
        if not is_complete and len(self._waiting) < MAX_WAITING_TOKENS:
            return ""
        self._before, self._waiting = self._waiting, []
        return text

    def flush(self) -> str:
        """See `Decoder`."""
        text = self._text() if self._waiting else ""
        self._waiting = []
        return text

    def _text(self) -> str:
        before = self._decode(self._before) if self._before else ""
        both = self._decode([*self._before, *self._waiting])
        return both[len(before) :] if both.startswith(before) else self._decode(self._waiting)


def _written_byte(word: str) -> int | None:
    """Return the byte that <0xE4> stands for."""
    if len(word) != len("<0x00>") or not (word.startswith("<0x") and word.endswith(">")):
        return None
    try:
        return int(word[3:5], 16)
    except ValueError:
        return None


def _take(waiting: bytes) -> int:
    """Return how many of the first bytes are decided: 0 where they begin a character; a broken one is 1."""
    try:
        waiting.decode()
    except UnicodeDecodeError as error:
        return 0 if error.start == 0 and error.reason == "unexpected end of data" else 1
    return len(waiting)
