"""Text to token ids and back, with the model's own tokenizer. Only this and `bounds` import `tokenizers`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dormouse_worker.common.errors import ModelInvalid, WorkerError
from dormouse_worker.front.text.bounds import TextBound, bound_of
from dormouse_worker.front.text.decoding import (
    REPLACEMENT,
    ByteDecoder,
    Decoder,
    PieceDecoder,
    TokenBytes,
    TokenPieces,
    WindowDecoder,
    decoder_parts,
    falls_back_to_bytes,
    find_anchor,
    is_byte_level,
    is_piecewise,
)
from dormouse_worker.front.text.truncation import Pair, encode_first, encode_pairs


class TokenizerMissing(WorkerError):
    """The model's directory has no tokenizer.json."""


class TokenizerBroken(WorkerError):
    """The model's tokenizer gave up in the middle of its work."""


class TextCodec:
    """One model's tokenizer. Threads may share it: what it looks up later is always the same."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()  # a prompt is refused when it is too long, never cut
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = {str(token.content): token_id for token_id, token in added.items() if token.special}
        self._special_ids = frozenset(self._special.values())
        parts = decoder_parts(tokenizer.decoder)
        self._bytes = TokenBytes(tokenizer) if is_byte_level(parts) else None
        self._pieces = self._make_pieces(parts) if self._bytes is None else None

    def __repr__(self) -> str:
        return f"TextCodec({self._tokenizer.get_vocab_size()} tokens)"

    @classmethod
    def load(cls, model_path: Path) -> TextCodec:
        """Read tokenizer.json. Raises TokenizerMissing, or ModelInvalid if it cannot be read."""
        file = model_path / "tokenizer.json"
        if not file.is_file():
            raise TokenizerMissing(
                f"{file}: missing; save the tokenizer with transformers' save_pretrained, which writes this file"
            )
        try:
            return cls(Tokenizer.from_file(str(file)))
        except Exception as error:  # the library raises bare Exception
            raise ModelInvalid(f"{file}: not readable as a tokenizer ({error}); copy the model again") from error

    @property
    def why_textless(self) -> str:
        """Return why tokens are no text here: they are."""
        return ""

    @property
    def vocab_size(self) -> int:
        """Return how many tokens the tokenizer knows, added ones included."""
        return int(self._tokenizer.get_vocab_size())

    @cached_property
    def bound(self) -> TextBound | None:
        """Return how much text can fit so many tokens, None if that is not known. Slow once: it lists the tokens."""
        return bound_of(self._tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids; [] for "" without special tokens."""
        # the plain `encode` holds the interpreter lock: a megabyte would stop every stream for a second
        with _no_panic():
            return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def encode_first(self, text: str, max_tokens: int, *, add_special_tokens: bool) -> list[int]:
        """Return the first ids, at most so many, special ones included, as truncating all of the text would give."""
        with _no_panic():
            return encode_first(self._tokenizer, text, max_tokens, add_special_tokens=add_special_tokens)

    @property
    def num_pair_tokens(self) -> int:
        """Return how many special tokens join two texts."""
        return int(self._tokenizer.num_special_tokens_to_add(is_pair=True))

    def encode_pairs(self, query: str, documents: Sequence[str], max_tokens: int) -> list[Pair]:
        """Return the query with the first so many tokens of each document, 0 = all."""
        with _no_panic():
            return encode_pairs(self._tokenizer, query, documents, max_tokens)

    def bad_word_token_ids(self, word: str) -> list[tuple[int, ...]]:
        """Return the sequences that spell a word: at the text's start and, where that differs, after a space.

        As in vLLM, a leading space of the word itself does not count. [] if the tokenizer leaves nothing of it.
        """
        plain = tuple(self.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(self.encode(f" {word.lstrip()}", add_special_tokens=False))
        covers = plain and spaced[-len(plain) :] == plain  # then the plain one forbids all that this one does
        return [ids for ids in (plain, () if covers else spaced) if ids]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text, as `stream` would give it; ids that the tokenizer does not know give nothing."""
        with _no_panic():
            text = str(self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0])
        if self._pieces is None or REPLACEMENT not in text:
            return text
        decoder = self.stream((), skip_special_tokens=skip_special_tokens)
        return "".join([*map(decoder.step, token_ids), decoder.flush()])

    def special_token_ids(self, texts: Collection[str]) -> dict[str, int]:
        """Return which of these texts are special tokens, or have one in them: the token's text → its id."""
        return {word: token_id for word, token_id in self._special.items() if any(word in text for text in texts)}

    def stream(
        self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool, kept: Collection[int] = ()
    ) -> Decoder:
        """Return a decoder for what follows the prompt; `kept` are special tokens that are not skipped.

        Where the prompt ends within a character, its rest is broken.
        """
        skipped = self._special_ids.difference(kept) if skip_special_tokens else frozenset[int]()
        if self._bytes is not None:
            return ByteDecoder(self._bytes, skipped)
        if self._pieces is not None:
            return PieceDecoder(self._pieces, skipped, prompt_token_ids)
        return WindowDecoder(self._decode_here, prompt_token_ids, skipped)

    def _make_pieces(self, parts: Sequence[Mapping[str, Any]]) -> TokenPieces | None:
        """Return what each token says, None if that depends on others."""
        if not is_piecewise(parts):
            return None
        has_bytes = falls_back_to_bytes(parts)
        decode = self._decode_here
        anchor = find_anchor(decode, (i for i in range(self.vocab_size) if i not in self._special_ids))
        return None if anchor is None else TokenPieces(self._tokenizer, decode, anchor, has_bytes=has_bytes)

    def _decode_here(self, token_ids: Sequence[int]) -> str:
        """Decode few tokens, special ones too, without leaving the thread."""
        with _no_panic():
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))


@contextmanager
def _no_panic() -> Iterator[None]:
    """Raise TokenizerBroken where the library panics: that is no Exception, and nobody else would stop it."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerBroken(f"the model's tokenizer failed: {error}") from error
