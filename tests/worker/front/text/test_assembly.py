"""Tokens become text, and a sequence that goes on elsewhere gives exactly the rest of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.common.ipc import TokenOutput
from dormouse_worker.front.requests.streams import OutputStream, Times
from dormouse_worker.front.testing import EOS
from dormouse_worker.front.text.assembly import Resumed, TextAssembly, TextRules
from dormouse_worker.front.text.tokenizer import TextCodec

PIECES = ["a", "b", "é", "✓", "😀", "<s>", "</s>", "\ufffd"]
ENDS = frozenset({EOS})


@pytest.fixture(scope="module")
def codec(model_path):
    return TextCodec.load(model_path)


@pytest.fixture(scope="module")
def alphabet(codec):
    """Bytes of few letters and of longer characters, so that halves and stop strings are frequent; and special ones."""
    return sorted({token for piece in PIECES for token in codec.encode(piece, add_special_tokens=False)})


def assemble(codec, *, stops, include, min_tokens, skip):
    decoder = codec.stream(codec.encode("p", add_special_tokens=False), skip_special_tokens=skip)
    return TextAssembly(TextRules(decoder, stops, include_stop=include, min_tokens=min_tokens))


def run(stream, tokens, max_tokens, min_tokens):
    """Push the tokens one by one as the engine does, and return (text, reason, stop) and the bytes after each token."""
    text, sent = "", []
    for token in tokens:
        if stream.is_finished:
            break
        count = stream.num_tokens + 1
        reason = "length" if count == max_tokens else None
        stream.push(TokenOutput("1", [token], "stop" if token in ENDS and count > min_tokens else reason))
        text += drain(stream)
        sent.append(len(text.encode()))
    return text, sent


def drain(stream):
    text = ""
    while (piece := stream.pop()) is not None:
        text += piece.text
        stream.last = piece
    return text


class Stream(OutputStream):
    """A stream that remembers its last piece."""

    last = None

    @property
    def end(self):
        return (self.last.finish_reason, self.last.matched_stop, self.last.completion_tokens)


@given(data=st.data(), include=st.booleans(), skip=st.booleans(), min_tokens=st.integers(0, 6))
def test_before_and_after_any_cut_is_the_uncut_text(codec, alphabet, data, include, skip, min_tokens):
    tokens = data.draw(st.lists(st.sampled_from(alphabet), min_size=1, max_size=16))
    stops = data.draw(st.lists(st.text(alphabet="abé✓😀<s>\ufffd", min_size=1, max_size=4), max_size=4))
    rules = {"stops": stops, "include": include, "min_tokens": min_tokens, "skip": skip}

    def stream():
        assembly = assemble(codec, **rules)
        return Stream(assembly, Times(0.0), clock=lambda: 0.0), assembly

    whole, _ = stream()
    text, sent = run(whole, tokens, len(tokens), min_tokens)
    num_tokens = len(sent)
    for cut in range(num_tokens):
        # also a caller whose last messages were lost on the way has a whole number of characters
        had = text.encode()[: sent[cut - 1] if cut else 0].decode()
        known = had[: data.draw(st.integers(0, len(had)))]
        second, assembly = stream()
        second.begin_with(assembly.resume(tokens[:cut], ENDS, emitted_utf8_bytes=len(known.encode())))
        rest = drain(second)
        assert known + rest == had, "what the first worker had given out comes at once"
        assert not second.is_finished
        rest += run(second, tokens[cut:], len(tokens), min_tokens)[0]
        assert known + rest == text
        assert second.end == whole.end


@given(data=st.data(), include=st.booleans())
def test_what_had_ended_already_ends_at_once_with_the_same_reason(codec, alphabet, data, include):
    tokens = data.draw(st.lists(st.sampled_from(alphabet), min_size=1, max_size=16))
    stops = data.draw(st.lists(st.text(alphabet="ab✓", min_size=1, max_size=3), min_size=1, max_size=4))
    rules = {"stops": stops, "include": include, "min_tokens": 0, "skip": True}
    whole = Stream(assemble(codec, **rules), Times(0.0), clock=lambda: 0.0)
    text, sent = run(whole, tokens, len(tokens) + 1, 0)
    if not whole.is_finished:
        return
    assembly = assemble(codec, **rules)
    again = Stream(assembly, Times(0.0), clock=lambda: 0.0)
    known = sent[-2] if len(sent) > 1 else 0
    again.begin_with(assembly.resume(tokens, ENDS, emitted_utf8_bytes=known))
    assert text.encode()[:known].decode() + drain(again) == text
    assert again.end == whole.end


class Letters:
    """A decoder in which every token is the letter of that number."""

    def step(self, token_id):
        return chr(token_id)

    def flush(self):
        return ""


def resume(text, emitted, *, stops=(), ends=frozenset(), **rules):
    assembly = TextAssembly(TextRules(Letters(), stops, **rules))
    return assembly, assembly.resume([ord(c) for c in text], ends, emitted_utf8_bytes=emitted)


def test_a_caller_may_know_text_that_is_held_back_here_and_does_not_get_it_twice():
    assembly, resumed = resume("xab", 2, stops=("abc",))
    assert resumed == Resumed("xa", "", None, None)
    assert assembly.step(ord("z"), is_end=False) == "bz"
    assembly, _ = resume("xab", 3, stops=("abc",))
    assert assembly.flush() == ""


@pytest.mark.parametrize(("emitted", "most"), [(4, "at most 3"), (2**64 - 1, "at most 3"), (2, "within a character")])
def test_more_bytes_than_there_can_be_or_half_a_character_are_refused(emitted, most):
    with pytest.raises(ValueError, match=most):
        resume("aé", emitted)


def test_an_end_token_counts_only_after_min_tokens():
    ends = frozenset({ord("!")})
    assert resume("a!b", 0, ends=ends)[1] == Resumed("", "a", "stop", None)
    assert resume("a!b", 0, ends=ends, include_stop=True)[1] == Resumed("", "a!", "stop", None)
    assert resume("a!b", 0, ends=ends, min_tokens=2)[1] == Resumed("", "a!b", None, None)
