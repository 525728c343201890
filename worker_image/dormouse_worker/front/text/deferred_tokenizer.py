"""A codec for models without tokenizer.json: it comes when the engine has made one, or never."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.ipc import EngineStatus, State
from dormouse_worker.common.lifecycle import RETRY_AFTER_S
from dormouse_worker.front.text.bounds import TextBound
from dormouse_worker.front.text.decoding import Decoder
from dormouse_worker.front.text.tokenizer import TextCodec, TokenizerMissing
from dormouse_worker.front.text.truncation import Pair


class Codec(Protocol):
    """What the front needs of a tokenizer; `TextCodec` says what each does."""

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    @property
    def why_textless(self) -> str: ...  # noqa: D102

    @property
    def bound(self) -> TextBound | None: ...  # noqa: D102

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...  # noqa: D102

    def encode_first(self, text: str, max_tokens: int, *, add_special_tokens: bool) -> list[int]: ...  # noqa: D102

    @property
    def num_pair_tokens(self) -> int: ...  # noqa: D102

    def encode_pairs(self, query: str, documents: Sequence[str], max_tokens: int) -> list[Pair]: ...  # noqa: D102

    def bad_word_token_ids(self, word: str) -> list[tuple[int, ...]]: ...  # noqa: D102

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...  # noqa: D102

    def special_token_ids(self, texts: Collection[str]) -> dict[str, int]: ...  # noqa: D102

    def stream(  # noqa: D102
        self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool, kept: Collection[int] = ()
    ) -> Decoder: ...


class LateCodec:
    """Implements `Codec`: refuses text until the engine's tokenizer is there, or for good; token ids always pass."""

    def __init__(self, why_missing: str) -> None:
        self._why_missing = why_missing
        self._codec: TextCodec | None = None
        self._is_hopeless = False

    def __repr__(self) -> str:
        return f"LateCodec({self._codec!r}, hopeless={self._is_hopeless})"

    def take(self, status: EngineStatus) -> None:
        """Heed what the engine says of its tokenizer. Slow when it has one. Raises ModelInvalid if that is broken."""
        if self._codec is None and status.tokenizer_path:
            self._codec = TextCodec.load(Path(status.tokenizer_path).parent)
        self._why_missing = status.tokenizer_problem or self._why_missing
        self._is_hopeless = self._codec is None and status.state not in {State.STARTING, State.LOADING}

    @property
    def vocab_size(self) -> int:
        """Return how many tokens the tokenizer knows; 0 without one."""
        return self._codec.vocab_size if self._codec is not None else 0

    @property
    def why_textless(self) -> str:
        """Return why tokens are no text here and never will be, "" if they are. Raises CallError if it is not known."""
        if self._codec is not None:
            return ""
        if self._is_hopeless:
            return f"this model takes token ids only: {self._why_missing}"
        why = "the tokenizer is being converted"
        raise CallError(grpc.StatusCode.UNAVAILABLE, why, RETRY_AFTER_S[State.LOADING])

    @property
    def bound(self) -> TextBound | None:
        """See `Codec`. Raises CallError without a tokenizer."""
        return self._loaded().bound

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See `Codec`. Raises CallError without a tokenizer."""
        return self._loaded().encode(text, add_special_tokens=add_special_tokens)

    def encode_first(self, text: str, max_tokens: int, *, add_special_tokens: bool) -> list[int]:
        """See `Codec`. Raises CallError without a tokenizer."""
        return self._loaded().encode_first(text, max_tokens, add_special_tokens=add_special_tokens)

    @property
    def num_pair_tokens(self) -> int:
        """See `Codec`. Raises CallError without a tokenizer."""
        return self._loaded().num_pair_tokens

    def encode_pairs(self, query: str, documents: Sequence[str], max_tokens: int) -> list[Pair]:
        """See `Codec`. Raises CallError without a tokenizer."""
        return self._loaded().encode_pairs(query, documents, max_tokens)

    def bad_word_token_ids(self, word: str) -> list[tuple[int, ...]]:
        """See `Codec`. Raises CallError without a tokenizer."""
        return self._loaded().bad_word_token_ids(word)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """See `Codec`. Raises CallError without a tokenizer."""
        return self._loaded().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def special_token_ids(self, texts: Collection[str]) -> dict[str, int]:
        """See `Codec`. Without a tokenizer there are none."""
        return self._codec.special_token_ids(texts) if self._codec is not None else {}

    def stream(
        self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool, kept: Collection[int] = ()
    ) -> Decoder:
        """See `Codec`. Without a tokenizer every token is no text."""
        if self._codec is None:
            return NoText()
        return self._codec.stream(prompt_token_ids, skip_special_tokens=skip_special_tokens, kept=kept)

    def _loaded(self) -> TextCodec:
        if why := self.why_textless:
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, why)
        assert self._codec is not None, "else there is a reason"
        return self._codec


class NoText:
    """Implements `Decoder` where nobody knows what a token says."""

    def step(self, token_id: int) -> str:
        """See `Decoder`."""
        del token_id
        return ""

    def flush(self) -> str:
        """See `Decoder`."""
        return ""


def load_codec(model_path: Path) -> Codec:
    """Return the model's codec; one that waits for the engine where there is no tokenizer.json. Raises ModelInvalid."""
    try:
        return TextCodec.load(model_path)
    except TokenizerMissing as error:
        return LateCodec(str(error))
