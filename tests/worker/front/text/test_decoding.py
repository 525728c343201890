"""Streamed text is the text of the whole, whatever the tokenizer, and what waits for a character is bounded."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from dormouse_worker.front.text.assembly import TextAssembly, TextRules
from dormouse_worker.front.text.decoding import MAX_WAITING_TOKENS, ByteDecoder, PieceDecoder, WindowDecoder
from dormouse_worker.front.text.tokenizer import TextCodec, TokenizerBroken

CORPUS = ["the cat don't sit on the mat.", "naïve café ✓ 😀 don't!", "你好 世界 a b  c", "can't , won't ."] * 20
SPECIAL = ["<s>", "</s>"]
REPLACEMENT = "\ufffd"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["né à"])  # written as it is, not in the alphabet of bytes
    return tokenizer


def sentencepiece(decoder):
    """Return a tokenizer as llama's are: pieces with ▁ for spaces, and a byte for what is in no piece."""
    learned = Tokenizer(models.BPE())
    learned.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learned.train_from_iterator(CORPUS[:1] * 20, trainers.BpeTrainer(vocab_size=60))
    state = json.loads(learned.to_str())
    words = [*SPECIAL, "<unk>", *BYTES, *(word for word in state["model"]["vocab"])]
    state["model"]["vocab"] = {word: number for number, word in enumerate(words)}
    state["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]", *SPECIAL]))
    return tokenizer


def words(decoder=None):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "▁b": 1, "c</w>": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
TOKENIZERS = {
    "byte-level BPE": (byte_level(), ByteDecoder),
    "SentencePiece as llama's": (sentencepiece(decoders.Sequence(LLAMA)), PieceDecoder),
    "SentencePiece as gemma's": (sentencepiece(decoders.Sequence(LLAMA[:3])), PieceDecoder),
    "SentencePiece with Metaspace": (
        sentencepiece(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])),
        PieceDecoder,
    ),
    "WordPiece": (word_piece(), PieceDecoder),
    "words": (words(), PieceDecoder),
    "words with suffixes": (words(decoders.BPEDecoder("</w>")), WindowDecoder),
}
CODECS = {name: TextCodec(tokenizer) for name, (tokenizer, _) in TOKENIZERS.items()}


@st.composite
def sequences(draw):
    """Return a codec, a prompt and tokens after it: texts, single bytes and anything else, known or not."""
    codec = CODECS[draw(st.sampled_from(sorted(CODECS)))]
    anything = st.lists(st.integers(0, codec.vocab_size + 2), max_size=6)
    sound = st.text("abte 你✓é😀.'", max_size=6).map(lambda text: codec.encode(text, add_special_tokens=False))
    tokens = st.lists(st.one_of(anything, sound), max_size=5).map(lambda parts: [t for part in parts for t in part])
    return codec, draw(tokens), draw(tokens)


def streamed(codec, prompt, tokens, *, skip):
    decoder = codec.stream(prompt, skip_special_tokens=skip)
    return "".join([*map(decoder.step, tokens), decoder.flush()])


@given(case=sequences(), skip=st.booleans())
def test_what_is_streamed_is_the_text_of_the_whole(case, skip):
    codec, _, tokens = case
    assert streamed(codec, [], tokens, skip=skip) == codec.decode(tokens, skip_special_tokens=skip)


@given(case=sequences(), skip=st.booleans())
def test_what_is_streamed_goes_on_where_the_prompt_ends(case, skip):
    codec, prompt, tokens = case
    before = codec.decode(prompt, skip_special_tokens=skip)
    if not before.endswith(REPLACEMENT):
        whole = codec.decode([*prompt, *tokens], skip_special_tokens=skip)
        assert before + streamed(codec, prompt, tokens, skip=skip) == whole


@given(case=sequences(), skip=st.booleans())
@example(case=(CODECS["SentencePiece as llama's"], [], [3 + 0xE4, 3 + 0xBD, 3 + 0xA0]), skip=True)
def test_a_text_without_broken_bytes_is_the_librarys(case, skip):
    codec, _, tokens = case
    text = codec._tokenizer.decode(tokens, skip_special_tokens=skip)
    if REPLACEMENT not in text:
        assert codec.decode(tokens, skip_special_tokens=skip) == text


@given(data=st.data())
def test_broken_bytes_are_the_librarys_where_no_character_stands_beside_them(data):
    codec = CODECS["SentencePiece as llama's"]
    token = st.one_of(st.integers(3 + 0x80, 3 + 0xBF), st.integers(3 + 256, codec.vocab_size - 1))
    tokens = data.draw(st.lists(token, max_size=12))
    assert codec.decode(tokens, skip_special_tokens=True) == codec._tokenizer.decode(tokens)


def test_a_character_stays_though_a_broken_byte_follows():
    codec = CODECS["SentencePiece as llama's"]
    assert codec.decode([3 + 0xE4, 3 + 0xBD, 3 + 0xA0, 3 + 0x80], skip_special_tokens=True) == "你\ufffd"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_each_kind_has_the_decoder_that_knows_it(name):
    assert type(CODECS[name].stream([], skip_special_tokens=True)) is TOKENIZERS[name][1]


@pytest.mark.parametrize("name", ["byte-level BPE", "SentencePiece as llama's"])
def test_a_stream_that_never_completes_a_character_says_so_at_once_and_keeps_nothing(name):
    codec = CODECS[name]
    token = codec._tokenizer.token_to_id("Ģ" if name.startswith("byte") else "<0x80>")  # the byte 0x80
    decoder = codec.stream([], skip_special_tokens=True)
    assert [decoder.step(token) for _ in range(100)] == [REPLACEMENT] * 100
    assert decoder.flush() == ""


def test_a_window_is_never_longer_than_its_limit():
    asked = []

    def decode(ids):
        asked.append(len(ids))
        return REPLACEMENT * len(ids)

    decoder = WindowDecoder(decode)
    pieces = [decoder.step(0) for _ in range(50)]
    assert "".join([*pieces, decoder.flush()]) == REPLACEMENT * 50
    assert max(asked) <= 2 * MAX_WAITING_TOKENS


def test_a_window_begins_with_the_output_where_the_prompt_ends_within_a_character():
    decoder = WindowDecoder(lambda ids: "".join(chr(i) if i else REPLACEMENT for i in ids), [97, 0])
    assert decoder.step(98) == "b"


@pytest.mark.parametrize(
    "chain",
    [
        [decoders.Strip(" ", 1, 0), decoders.Fuse()],  # of every token
        [decoders.Fuse(), decoders.Strip(" ", 0, 1)],  # at an end that is not known yet
        [decoders.Fuse(), decoders.Replace("ab", "x")],
        [decoders.Replace("▁▁", "  "), decoders.ByteFallback()],
        [decoders.CTC()],
    ],
)
def test_a_chain_that_looks_around_is_decoded_in_its_window(chain):
    codec = TextCodec(words(decoders.Sequence(chain)))
    assert isinstance(codec.stream([], skip_special_tokens=True), WindowDecoder)


def test_a_tokenizer_that_panics_raises_an_error_that_costs_one_call():
    codec = TextCodec(words(decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])))
    with pytest.raises(TokenizerBroken, match="index out of bounds"):
        codec.decode([], skip_special_tokens=True)


def test_a_vocabulary_in_which_no_token_says_anything_has_a_window():
    tokenizer = Tokenizer(models.WordLevel({"▁": 0}, unk_token="▁"))
    tokenizer.decoder = decoders.Sequence(LLAMA)
    assert isinstance(TextCodec(tokenizer).stream([], skip_special_tokens=True), WindowDecoder)


def test_what_is_no_byte_though_it_looks_like_one_is_text():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<0xZZ>": 1}, unk_token="a"))
    tokenizer.decoder = decoders.Sequence(LLAMA)
    assert streamed(TextCodec(tokenizer), [0], [1], skip=True) == "<0xZZ>"


@given(
    case=sequences(), stops=st.lists(st.text("at \ufffd✓", min_size=1, max_size=2), max_size=3), include=st.booleans()
)
def test_stop_strings_cut_the_text_of_the_whole(case, stops, include):
    codec, _, tokens = case
    decoder = codec.stream([], skip_special_tokens=True)
    assembly = TextAssembly(TextRules(decoder, stops, include_stop=include))
    text = ""
    for token in tokens:
        text += assembly.step(token, is_end=False)
        if assembly.matched_stop is not None:
            break
    else:
        text += assembly.flush()
    whole = codec.decode(tokens, skip_special_tokens=True)
    ends = [(whole.index(stop) + len(stop), whole.index(stop)) for stop in stops if stop in whole]
    assert (assembly.matched_stop is not None) == bool(ends)
    assert text == (whole[: min(ends)[0 if include else 1]] if ends else whole)
