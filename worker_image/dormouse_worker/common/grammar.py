"""What a grammar may take, and how it is compiled: by the front for the error, by the sampling rank for the masks.

llguidance reads JSON schemas, regular expressions and Lark. Its own limits bound a step, not a compilation: some
schemas take minutes or overflow the stack. So the front compiles first, in a process that may die, and the engine only
what passed there, on a deeper stack than the front had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_LEXER_STATES = 20_000  # of 1 to 2 KiB each, so that no sequence takes more than some 40 MiB
STEP_LEXER_FUEL = 100_000  # for one mask: some 7 ms
STEP_MAX_ITEMS = 50_000  # for one mask: some 3 ms
MAX_WORDS_CHARS = 500  # of llguidance's own words: they repeat the grammar


class Grammar(msgspec.Struct, frozen=True):
    """What binds the text of an answer."""

    text: str  # as llguidance reads it
    end_token_ids: tuple[int, ...]  # what is sampled where it ends: the model's end-of-sequence tokens


class GrammarRefused(Exception):
    """The grammar cannot be kept; the message says why."""


def make_tokenizer(file: Path, end_token_ids: Sequence[int]) -> LLTokenizer:
    """Read a tokenizer.json; takes a tenth of a second for 50,000 tokens. Raises GrammarRefused.

    No text is a special token to it: a grammar that forces the characters `</s>` must not force the answer's end. So
    grammars name special tokens by their ids only, as in `<[2]>`.
    """
    from llguidance import LLTokenizer

    try:
        return LLTokenizer(_without_names(file.read_bytes()), eos_token=list(end_token_ids))
    except Exception as error:  # the library raises what it likes
        raise GrammarRefused(f"the model's tokenizer cannot be bound by grammars: {error}") from error


def special_tokens(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the special tokens of a tokenizer.json, by what they are called."""
    return {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or () if token["special"]}


def _without_names(tokenizer_json: bytes) -> str:
    """Return a tokenizer.json whose special tokens have names that nobody knows, who writes a text."""
    made = msgspec.json.decode(tokenizer_json)
    secret = token_hex(16)
    names = {name: f"{secret}{name}" for name in special_tokens(made)}
    for token in made.get("added_tokens") or ():
        token["content"] = names.get(token["content"], token["content"])
    model = made["model"]
    if isinstance(vocab := model.get("vocab"), dict):
        model["vocab"] = {names.get(text, text): token_id for text, token_id in vocab.items()}
    elif vocab is not None:
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return msgspec.json.encode(made).decode()


def compile_grammar(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Return a matcher that stands at the beginning, whose first mask is computed. Raises GrammarRefused."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES,
        step_lexer_fuel=STEP_LEXER_FUEL,
        step_max_items=STEP_MAX_ITEMS,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if not matcher.is_error():
        mask_of(matcher)
    if matcher.is_error():
        raise GrammarRefused(words_of(matcher))
    return matcher


def mask_of(matcher: LLMatcher) -> bytes:
    """Return which tokens may come next: a bit each, the lowest first. Raises GrammarRefused if none may."""
    mask = matcher.compute_bitmask()
    if matcher.is_error() or not any(mask):
        raise GrammarRefused(words_of(matcher) or "no token can follow")
    return mask


def forced_by(matcher: LLMatcher, most: int) -> tuple[int, ...]:
    """Return the tokens that come next as long as just one may, `most` at most; the matcher stays where it is.

    llguidance forces text, not tokens, and says how its tokenizer would write it. So do its masks, one token at a time.
    """
    forced: list[int] = matcher.compute_ff_tokens()[:most]
    if forced:
        del forced[matcher.validate_tokens(forced) :]
    return tuple(forced)


def words_of(matcher: LLMatcher) -> str:
    """Return what is wrong with a matcher, in the library's words."""
    words = " ".join(matcher.get_error().split())
    if words.startswith("NoExtensionBias"):
        return "no text satisfies it"
    return words if len(words) <= MAX_WORDS_CHARS else f"{words[:MAX_WORDS_CHARS]} …"
