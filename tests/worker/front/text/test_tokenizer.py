"""Tokenizing and incremental detokenizing."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.front.testing import BOS, EOS, SPECIAL_TOKENS
from dormouse_worker.front.text.tokenizer import TextCodec, TokenizerMissing

REPLACEMENT = "\ufffd"


@pytest.fixture(scope="module")
def codec(model_path):
    return TextCodec.load(model_path)


def stream_all(codec, ids, prompt=(), *, skip=True):
    decoder = codec.stream(list(prompt), skip_special_tokens=skip)
    return [decoder.step(token_id) for token_id in ids]


@given(text=st.text(max_size=30))
@example(text="a<|user|>b")
def test_the_pieces_make_the_text_and_none_is_half_a_character(codec, text):
    text = text.replace(REPLACEMENT, "")
    pieces = stream_all(codec, codec.encode(text, add_special_tokens=False), skip=False)
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)


def test_a_character_comes_with_its_last_byte(codec):
    ids = codec.encode("a✓", add_special_tokens=False)
    assert stream_all(codec, ids) == ["a", "", "", "✓"]
    assert stream_all(codec, ids[:-1]) == ["a", "", ""], "half a character waits for the rest"


def test_a_prompt_that_ends_within_a_character_is_completed_by_the_output(codec):
    ids = codec.encode("✓b", add_special_tokens=False)
    assert "b" in "".join(stream_all(codec, ids[2:], prompt=ids[:2]))


def test_special_tokens_are_text_only_on_request(codec):
    assert stream_all(codec, [BOS, 66]) == ["", codec.decode([66], skip_special_tokens=True)]
    assert "".join(stream_all(codec, [BOS], skip=False)) == "<s>"


def test_a_space_at_the_begin_of_the_output_is_kept_where_tokens_carry_it():
    tokenizer = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1}, unk_token="▁a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    assert stream_all(TextCodec(tokenizer), [1], prompt=[0]) == [" b"]


def test_a_decoder_that_rewrites_what_it_said_does_not_end_the_stream():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "x")])
    assert "".join(stream_all(TextCodec(tokenizer), [0, 1, 2])).endswith("c")


def test_a_bad_word_is_forbidden_at_the_start_and_after_a_space():
    tokenizer = Tokenizer(models.WordLevel({"▁a": 0, "a": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    assert TextCodec(tokenizer).bad_word_token_ids("a") == [(1,), (0,)]
    assert TextCodec(tokenizer).bad_word_token_ids(" a") == [(1,), (0,)], "its own leading space does not count"


def test_a_bad_word_after_a_space_stands_once_where_the_space_is_a_token_of_its_own(codec):
    assert codec.bad_word_token_ids("ab") == [tuple(codec.encode("ab", add_special_tokens=False))]


def test_a_bad_word_of_spaces_is_a_space(codec):
    assert codec.bad_word_token_ids("  ") == [tuple(codec.encode(" ", add_special_tokens=False))]


def test_a_missing_tokenizer_names_the_file(tmp_path):
    with pytest.raises(TokenizerMissing, match=r"tokenizer\.json"):
        TextCodec.load(tmp_path)


def test_a_broken_tokenizer_names_the_file(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelInvalid, match=r"tokenizer\.json"):
        TextCodec.load(tmp_path)


def test_a_prompt_is_never_cut(model_path):
    tokenizer = Tokenizer.from_file(str(model_path / "tokenizer.json"))
    tokenizer.enable_truncation(max_length=2)
    assert len(TextCodec(tokenizer).encode("abcdef", add_special_tokens=False)) == 6


def test_special_tokens_that_are_markers_are_found_and_kept(codec):
    found = codec.special_token_ids([f"a{SPECIAL_TOKENS[2]}b", "c"])
    (token,) = found.values()
    assert found == {SPECIAL_TOKENS[2]: codec.encode(SPECIAL_TOKENS[2], add_special_tokens=False)[0]}
    ids = [*codec.encode("é", add_special_tokens=False), EOS, token]
    decoder = codec.stream([], skip_special_tokens=True, kept=found.values())
    assert "".join(map(decoder.step, ids)) == f"é{SPECIAL_TOKENS[2]}"
