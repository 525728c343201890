"""Text to token ids and back, with the model's own tokenizer. The only importer of `tokenizers`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from dormouse_worker.errors import ModelInvalid, WorkerError

REPLACEMENT = "\ufffd"  # what a decoder puts where bytes are no character, or only the beginning of one
PRIMING_TOKENS = (4, 8, 16, 24)  # how much of the prompt's end the decoder gets to see


class TokenizerMissing(WorkerError):
    """The model's directory has no tokenizer.json."""


class Decoder(Protocol):
    """Turns one sequence's tokens into text, one at a time."""

    def step(self, token_id: int) -> str:
        """Return the text that this token completed; "" while a character is incomplete."""


class TextCodec:
    """One model's tokenizer. Stateless after loading: threads may share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()  # a prompt is refused when it is too long, never cut
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def __repr__(self) -> str:
        return f"TextCodec({self._tokenizer.get_vocab_size()} tokens)"

    @classmethod
    def load(cls, model_path: Path) -> TextCodec:
        """Read tokenizer.json. Raises TokenizerMissing, or ModelInvalid if it can not be read."""
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

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids; [] for "" without special tokens."""
        # the plain `encode` holds the interpreter lock: a megabyte would stop every stream for a second
        return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def bad_word_token_ids(self, word: str) -> list[tuple[int, ...]]:
        """Return the sequences that spell a word: at the text's start and, where that differs, after a space.

        As in vLLM, a leading space of the word itself does not count. [] if the tokenizer leaves nothing of it.
        """
        plain = tuple(self.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(self.encode(f" {word.lstrip()}", add_special_tokens=False))
        covers = plain and spaced[-len(plain) :] == plain  # then the plain one forbids all that this one does
        return [ids for ids in (plain, () if covers else spaced) if ids]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text; ids that the tokenizer does not know give nothing."""
        return str(self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0])

    def stream(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> StreamDecoder:
        """Return a decoder for what follows the prompt."""
        priming = self._priming(prompt_token_ids, skip_special_tokens)
        return StreamDecoder(self._tokenizer, priming, skip_special_tokens)

    def _priming(self, prompt: Sequence[int], skip_special_tokens: bool) -> list[int]:  # noqa: FBT001  internal
        """Return so much of the prompt's end as begins with a whole character: decoders treat a text's start apart."""
        for count in PRIMING_TOKENS:
            end = list(prompt[-count:])
            if REPLACEMENT not in self.decode(end, skip_special_tokens=skip_special_tokens):
                return end
        return []


class StreamDecoder:
    """Decodes incrementally; implements `Decoder`. Half a character is never given out."""

    def __init__(self, tokenizer: Tokenizer, priming: list[int], skip_special_tokens: bool) -> None:  # noqa: FBT001
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stream = DecodeStream(ids=priming, skip_special_tokens=skip_special_tokens)

    def step(self, token_id: int) -> str:
        """See `Decoder`."""
        try:
            return self._stream.step(self._tokenizer, token_id) or ""
        except Exception:  # noqa: BLE001  the library raises bare Exception when a decoder rewrites earlier text
            self._stream = DecodeStream(skip_special_tokens=self._skip_special_tokens)
            return self._stream.step(self._tokenizer, token_id) or ""
