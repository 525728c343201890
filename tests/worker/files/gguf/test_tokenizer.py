"""Tokenizers of GGUF files: the ids that the model's own tokenizer gives, for both kinds that are read."""

import itertools
import json
import random
import string

import pytest
from tokenizers import Tokenizer
from transformers.integrations.gguf import convert_gguf_tokenizer

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.gguf.facts import Facts
from dormouse_worker.files.gguf.header import read_gguf
from dormouse_worker.files.gguf.merges import merges_of_scores
from dormouse_worker.files.gguf.tokenizer import tokenizer_config_of, tokenizer_of
from tests.worker.files.gguf.kit import BYTE_LEVEL, LLAMA, TOKENS, write

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", *string.ascii_lowercase, "th", "he", "▁t", "▁the", "the", "er", "in", "ing", "▁▁", "\n"]
SCORES = [0.0] * 3 + [0.0] * 256 + [-float(n) for n in range(len(WORDS))]
PIECES = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTES, *WORDS],
    "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256), *([1] * len(WORDS))],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}
TEXTS = ["the thing", "  two  blanks", "", "it's 1234 o'clock\n\n\tand a tab", "naïve 日本語 ½ 🐿️", "<s>the</s> end"]


@pytest.fixture
def make(tmp_path):
    """Return a function (keys, architecture) → facts of a file."""

    def facts(keys, architecture="llama"):
        said = {name: value for name, value in (LLAMA | keys).items() if value is not None}
        return Facts(read_gguf(write(tmp_path / "m.gguf", said, architecture=architecture)))

    return facts


def tokenizer(facts):
    return Tokenizer.from_str(json.dumps(tokenizer_of(facts)))


def ids(made, text, *, special=True):
    return made.encode(text, add_special_tokens=special).ids


def reference(text):
    """Return what SentencePiece makes of a text: it joins the neighbours that score best, the first of equals."""
    places = {token: n for n, token in enumerate(PIECES["tokenizer.ggml.tokens"])}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        scored = [(SCORES[places[a + b]], -n) for n, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in places]
        if not scored:
            break
        place = -max(scored)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [n for part in parts for n in ([places[part]] if part in places else [3 + b for b in part.encode()])]


def test_pieces_are_joined_as_their_scores_say(make):
    made, draw = tokenizer(make(PIECES)), random.Random(3)
    texts = [*TEXTS[1:2], "héllo", *("".join(draw.choices("theringx \n", k=40)) for _ in range(100))]
    for text in texts:
        assert ids(made, text, special=False) == reference(text), text
        assert made.decode(ids(made, text)) == text


@pytest.mark.parametrize(
    ("keys", "architecture"),
    [
        (PIECES | {"tokenizer.ggml.add_space_prefix": False}, "gemma3"),
        (PIECES | {"tokenizer.ggml.merges": ["t h", "th e"]}, "phi3"),
        *((BYTE_LEVEL | {"tokenizer.ggml.pre": pre}, "llama") for pre in ("gpt-2", "llama-bpe", "tekken")),
        (BYTE_LEVEL | {"tokenizer.ggml.pre": "deepseek-r1-qwen"}, "qwen2"),
    ],
)
def test_ids_are_those_that_transformers_reads_of_the_file(make, keys, architecture):
    names = {"model": "tokenizer_type", "pre": "pre_tokenizer_type"}
    told = {
        names.get(key.removeprefix("tokenizer.ggml."), key.removeprefix("tokenizer.ggml.")): v
        for key, v in keys.items()
    }
    theirs, _ = convert_gguf_tokenizer(architecture, told)
    ours = tokenizer(make(keys, architecture))
    for text in TEXTS:
        assert ids(ours, text, special=False) == theirs.encode(text, add_special_tokens=False).ids, text


def test_digits_stand_alone_in_smollm(make):
    made = tokenizer(make(BYTE_LEVEL))
    assert made.encode("a 12").tokens == ["a", "Ġ", "1", "2"]
    assert ids(made, "<|im_start|>the<|im_end|>") == [1, TOKENS.index("the"), 2]
    assert made.decode([1, 5], skip_special_tokens=True) == TOKENS[5]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (BYTE_LEVEL, []),
        (BYTE_LEVEL | {"tokenizer.ggml.pre": "llama-bpe"}, [1]),
        (BYTE_LEVEL | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}, [1, 2]),
        (BYTE_LEVEL | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, []),
        (PIECES, [1]),
        (PIECES | {"tokenizer.ggml.add_bos_token": False}, []),
    ],
)
def test_prompts_begin_and_end_as_the_file_says_or_its_kind_does(make, keys, expected):
    assert ids(tokenizer(make(keys)), "") == expected


def test_tokens_that_users_defined_are_whole_and_shown(make):
    kinds = [1] * len(TOKENS)
    kinds[TOKENS.index("the")] = 4
    made = tokenizer(make(BYTE_LEVEL | {"tokenizer.ggml.token_type": kinds}))
    assert made.decode(ids(made, "xthe"), skip_special_tokens=True) == "xthe"
    assert TOKENS.index("the") in ids(made, "xthe")


def test_special_tokens_and_the_template_are_told_by_name(make):
    made = tokenizer_config_of(make(BYTE_LEVEL))
    assert (made["bos_token"], made["eos_token"], made.get("pad_token")) == ("<|im_start|>", "<|im_end|>", None)
    assert made["chat_template"] == BYTE_LEVEL["tokenizer.chat_template"]
    assert "bos_token" not in tokenizer_config_of(make({}))


def test_a_file_without_a_vocabulary_has_no_tokenizer(make):
    assert tokenizer_of(make({"tokenizer.ggml.model": "no_vocab"})) is None
    assert tokenizer_of(make({})) is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model is 't5'; read are gpt2 and llama"),
        ({"tokenizer.ggml.pre": "poro-chat"}, "tokenizer.ggml.pre is 'poro-chat'; read are gpt-2, smollm"),
        ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type has 1 numbers for"),
        ({"tokenizer.ggml.merges": ["t q!"]}, "tokenizer.ggml.merges has 't q!', which is of no tokens"),
        ({"tokenizer.ggml.merges": None}, "has no tokenizer.ggml.merges"),
    ],
)
def test_what_is_not_read_is_named(make, keys, message):
    with pytest.raises(ModelInvalid, match=message):
        tokenizer_of(make(BYTE_LEVEL | keys))


def test_scores_of_all_tokens_are_needed(make):
    with pytest.raises(ModelInvalid, match=r"tokenizer\.ggml\.scores has 1 numbers for"):
        tokenizer_of(make(PIECES | {"tokenizer.ggml.scores": [1.0]}))


def test_of_equal_scores_the_shorter_parts_go_first():
    assert merges_of_scores(["a", "b", "ab", "ba", "aba"], [0.0, 0.0, -1.0, -1.0, -2.0]) == [
        ("a", "b"),
        ("b", "a"),
        ("a", "ba"),
        ("ab", "a"),
    ]
