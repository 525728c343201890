"""tokenizer.json and tokenizer_config.json of what a GGUF file says: byte-level BPE, and SentencePiece's BPE. Pure.

A file names its way of splitting text by a word of llama.cpp's, which stands for an expression that it does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dormouse_worker.files.gguf.facts import Facts
from dormouse_worker.files.gguf.merges import merges_of_scores

Parts = dict[str, Any]

MODEL, TOKENS, KINDS = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
BYTE_LEVEL, PIECES = "gpt2", "llama"
CONTROL, USER_DEFINED = 3, 4
BLANK = "\u2581"

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Split:
    """How text is cut before merges, and what else goes with that."""

    pattern: str = ""  # "" = GPT-2's own
    digits_apart: bool = False
    composes: bool = False  # characters are composed first (NFC)
    whole_first: bool = False  # what is a token is not put together by merges
    begins: bool = False  # a prompt begins with a token, where the file does not say


_SPLITS: Mapping[str, _Split] = MappingProxyType(
    {
        "gpt-2": _Split(),
        "smollm": _Split(digits_apart=True),
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _Split(_LLAMA3, whole_first=True, begins=True)),
        "qwen2": _Split(_QWEN2, composes=True),
        "deepseek-r1-qwen": _Split(_QWEN2),
        "tekken": _Split(_TEKKEN, whole_first=True, begins=True),
    }
)


def tokenizer_of(facts: Facts) -> Parts | None:
    """Return tokenizer.json; None where the file has no vocabulary. Raises ModelInvalid for what is not read."""
    kind = facts.text(MODEL, "no_vocab")
    if kind == "no_vocab":
        return None
    if kind not in (BYTE_LEVEL, PIECES):
        raise facts.refusal(
            f"{MODEL} is {kind[:80]!r}; read are {BYTE_LEVEL} and {PIECES}: use the model's safetensors"
        )
    tokens = list(facts.texts(TOKENS))
    kinds = facts.numbers(KINDS, "i") if KINDS in facts.gguf.metadata else [1] * len(tokens)
    if len(kinds) != len(tokens):
        raise facts.refusal(f"{KINDS} has {len(kinds)} numbers for {len(tokens)} tokens; copy the file again")
    parts = _byte_level(facts, tokens) if kind == BYTE_LEVEL else _pieces(facts, tokens)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(i, tokens[i], of) for i, of in enumerate(kinds) if of in (CONTROL, USER_DEFINED)],
        "post_processor": _frame(facts, tokens),
        **parts,
    }


def tokenizer_config_of(facts: Facts) -> Parts:
    """Return tokenizer_config.json, the chat template within."""
    config: Parts = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if TOKENS in facts.gguf.metadata:
        wanted = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {name: facts.maybe_whole(f"tokenizer.ggml.{short}_token_id") for name, short in wanted.items()}
        found = {i: token for i, token in enumerate(facts.texts(TOKENS)) if i in ids.values()}
        config |= {name: found[i] for name, i in ids.items() if i in found}
    template = facts.text("tokenizer.chat_template", "")
    return {**config, "chat_template": template} if template else config


def _added(number: int, token: str, kind: float) -> Parts:
    shape = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **shape, "special": kind == CONTROL}


def _byte_level(facts: Facts, tokens: Sequence[str]) -> Parts:
    name = facts.text("tokenizer.ggml.pre", "")
    split = _SPLITS.get(name)
    if split is None:
        raise facts.refusal(
            f"tokenizer.ggml.pre is {name[:80]!r}; read are {', '.join(_SPLITS)}: use the model's safetensors"
        )
    steps: list[Parts] = [{"type": "Digits", "individual_digits": True}] if split.digits_apart else []
    if split.pattern:
        steps.append({"type": "Split", "pattern": {"Regex": split.pattern}, "behavior": "Isolated", "invert": False})
    spaces = {"add_prefix_space": False, "trim_offsets": True, "use_regex": not split.pattern}
    merges = [_pair(merge) for merge in facts.texts("tokenizer.ggml.merges")]
    return {
        "normalizer": {"type": "NFC"} if split.composes else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel", **spaces}]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(tokens, _possible(facts, merges, tokens), ignore_merges=split.whole_first),
    }


def _pieces(facts: Facts, tokens: list[str]) -> Parts:
    """Return SentencePiece's BPE, where a blank is a character of words and unknown characters are bytes."""
    is_gemma = facts.architecture.startswith("gemma")
    spelled = [_blanks(token) for token in tokens] if is_gemma else tokens
    has_prefix = facts.flag("tokenizer.ggml.add_space_prefix", default=not is_gemma)
    blank = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    steps = [{"type": "Prepend", "prepend": BLANK}, blank] if has_prefix else [blank]
    back: list[Parts] = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []),
    ]
    unknown = facts.maybe_whole("tokenizer.ggml.unknown_token_id")
    name = tokens[unknown] if unknown is not None and unknown < len(tokens) else None
    merges = _piece_merges(facts, spelled, by_place=is_gemma)
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": back},
        "model": _bpe(spelled, merges, unk_token=name, fuse_unk=True, byte_fallback=True),
    }


def _piece_merges(facts: Facts, tokens: Sequence[str], *, by_place: bool) -> list[tuple[str, str]]:
    """Return merges, the first to be made first: as the file lists them, or as its scores demand.

    Gemma's tokens stand in the order of their merges, and their scores do not say it.
    """
    if "tokenizer.ggml.merges" in facts.gguf.metadata:
        return _possible(facts, [_pair(merge) for merge in facts.texts("tokenizer.ggml.merges")], tokens)
    scores = [float(-i) for i in range(len(tokens))] if by_place else facts.numbers("tokenizer.ggml.scores", "f")
    if len(scores) != len(tokens):
        raise facts.refusal(f"tokenizer.ggml.scores has {len(scores)} numbers for {len(tokens)} tokens; copy it again")
    return merges_of_scores(tokens, scores)


def _blanks(token: str) -> str:
    """Return a token of blanks alone as SentencePiece spells it."""
    return token.replace(" ", BLANK) if token.strip(" ") == "" else token


def _pair(merge: str) -> tuple[str, str]:
    """Return both parts, of which the first may begin with a blank."""
    first, _, second = merge[1:].partition(" ")
    return merge[:1] + first, second


def _possible(facts: Facts, merges: list[tuple[str, str]], tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Return the merges. Raises ModelInvalid for one of parts, or with an outcome, that is no token."""
    known = set(tokens)
    if wrong := next((pair for pair in merges if not {*pair, "".join(pair)} <= known), None):
        raise facts.refusal(f"tokenizer.ggml.merges has {' '.join(wrong)[:80]!r}, which is of no tokens; copy it again")
    return merges


def _bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]], **options: Any) -> Parts:
    vocabulary: dict[str, int] = {}
    for number, token in enumerate(tokens):
        vocabulary.setdefault(token, number)
    plain = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    flags = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **plain, **flags, **options, "vocab": vocabulary, "merges": [list(pair) for pair in merges]}


def _frame(facts: Facts, tokens: Sequence[str]) -> Parts | None:
    """Return what puts tokens before and behind a text, None if nothing does."""
    begins = facts.text(MODEL) == PIECES or _SPLITS[facts.text("tokenizer.ggml.pre")].begins
    wanted = {
        "bos": facts.flag("tokenizer.ggml.add_bos_token", default=begins),
        "eos": facts.flag("tokenizer.ggml.add_eos_token", default=False),
    }
    ids = {name: facts.maybe_whole(f"tokenizer.ggml.{name}_token_id") for name, is_added in wanted.items() if is_added}
    found = {name: number for name, number in ids.items() if number is not None and number < len(tokens)}
    if not found:
        return None

    def around(text: str, kind: int) -> list[Parts]:
        ends = {name: {"SpecialToken": {"id": tokens[number], "type_id": kind}} for name, number in found.items()}
        parts = (ends.get("bos"), {"Sequence": {"id": text, "type_id": kind}}, ends.get("eos"))
        return [part for part in parts if part is not None]

    special = {
        tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]} for number in found.values()
    }
    pair = [*around("A", 0), *around("B", 1)]
    return {"type": "TemplateProcessing", "single": around("A", 0), "pair": pair, "special_tokens": special}
