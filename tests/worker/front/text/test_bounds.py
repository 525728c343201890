"""Text that cannot fit is refused by its bytes, where that can be proved; what would fit never is."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from dormouse_worker.front.text.bounds import MAX_GROWTH, SHRINKS, TextBound
from dormouse_worker.front.text.tokenizer import TextCodec

CORPUS = ["the cat sat on the mat, the cat sat    on the mat", "naïve café ✓ 😀", "你好 世界"] * 20
EVERY_BYTE = {f"<0x{byte:02X}>": byte for byte in range(256)}


def byte_level(normalizer=None, before=None, *, added=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([before, level]) if before else level
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    tokenizer.add_tokens(list(added))
    return tokenizer


def byte_fallback(vocabulary=EVERY_BYTE, normalizer=None):
    words = {**vocabulary, "▁": 256, "a": 257, "▁a": 258, "世": 259}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[("▁", "a")], byte_fallback=True))
    tokenizer.normalizer = normalizer or normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


RSTRIP = AddedToken("<|end|>", rstrip=True, normalized=False)
BOUND = {
    "byte-level": byte_level(),
    "byte-level, NFC": byte_level(normalizers.NFC()),
    "byte-level, NFKC in lower case": byte_level(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    "byte-level, digits apart": byte_level(before=pre_tokenizers.Digits(individual_digits=True)),
    "byte-level, split": byte_level(before=pre_tokenizers.Split(Regex(r"\s+"), "isolated")),
    "byte-level, tokens that swallow space": byte_level(added=[RSTRIP]),
    "byte-level, a token that is normalized": byte_level(normalizers.NFKC(), added=[AddedToken("ﷺ", normalized=True)]),
    "byte fallback": byte_fallback(),
    "byte fallback, shortened": byte_fallback(normalizer=normalizers.Replace("aaaa", "a")),
}
UNBOUND = {
    "white space is dropped": byte_level(before=pre_tokenizers.Split(Regex(r"\s+"), "removed")),
    "text is stripped": byte_level(normalizers.Strip()),
    "text is replaced by nothing": byte_level(normalizers.Replace("a", "")),
    "text is replaced by a pattern": byte_level(normalizers.Replace(Regex("a+"), "a")),
    "a byte is missing": byte_fallback({word: i for word, i in EVERY_BYTE.items() if i}),
    "no byte-level letters": Tokenizer(models.BPE(vocab={"a": 0}, merges=[])),
    "a word is one token": Tokenizer(models.WordPiece(vocab={"[UNK]": 0}, unk_token="[UNK]")),
    "pre-tokenizer drops": byte_level(before=pre_tokenizers.WhitespaceSplit()),
}


@pytest.mark.parametrize("name", BOUND)
@given(text=st.text(alphabet=st.sampled_from("a the\u00e9e\u0301\u0344K𝐀각ᄀ각ﷺ世✓😀  \n1aaaa"), max_size=40))
@example(text="K" * 30)
@example(text="𝐀" * 30)
@example(text="ﷺ" * 9)
@example(text="the cat sat    on the mat")
def test_no_text_has_fewer_tokens_than_its_bound_says(name, text):
    codec = TextCodec(BOUND[name])
    assert codec.bound.min_tokens(text) <= len(codec.encode(text, add_special_tokens=False))


def test_white_space_that_a_token_swallows_is_not_counted():
    codec = TextCodec(BOUND["byte-level, tokens that swallow space"])
    text = "<|end|>" + " " * 10_000
    assert codec.bound.min_tokens(text) == 1 == len(codec.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", UNBOUND)
def test_where_text_may_vanish_nothing_is_claimed(name):
    assert TextCodec(UNBOUND[name]).bound is None


def test_a_bound_is_as_near_as_the_longest_token():
    assert TextBound(4, counts_space=True).min_tokens("é" * 5) == 3
    assert TextBound(4, counts_space=False).min_tokens("a b c d e ") == 2


def test_no_character_shrinks_or_grows_more_than_is_reckoned_with():
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]

    def sizes(form):
        forms = ((c, unicodedata.normalize(form, c)) for c in characters)
        return [(len(c.encode()), len(changed.encode())) for c, changed in forms]

    most = {form: max(before / after for before, after in sizes(form)) for form in ("NFD", "NFKD")}
    composed = max(after / before for before, after in sizes("NFD"))
    assert SHRINKS["NFD"] >= most["NFD"]
    assert SHRINKS["NFKD"] >= most["NFKD"]
    assert SHRINKS["NFC"] >= most["NFD"] * composed
    assert SHRINKS["NFKC"] >= most["NFKD"] * composed
    assert max(after / before for before, after in sizes("NFKD")) <= MAX_GROWTH
    assert SHRINKS["Lowercase"] >= max(len(c.encode()) / len(c.lower().encode()) for c in characters)
