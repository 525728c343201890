"""Grammars in the engine: compiled beside it, held only by their own requests, fed what was said, and their ends."""

from __future__ import annotations

import json
from concurrent.futures import Future

import pytest

from dormouse_worker.common.grammar import Grammar, GrammarRefused, make_tokenizer, words_of
from dormouse_worker.engine import grammars as module
from dormouse_worker.engine.grammars import Compilation, Grammars, Growth, Matcher, Said
from dormouse_worker.front.testing import EOS, write_model

YES = Grammar('start: "yes"', (EOS,))
A_LOT = Grammar("start: /a*/", (EOS,))
NUL = 0  # the first token that no printable character has


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model")) / "tokenizer.json"


@pytest.fixture
def grammars(tokenizer_file):
    made = Grammars(tokenizer_file)
    yield made
    made.close()


def tokens_of(tokenizer_file, text):
    return make_tokenizer(tokenizer_file, (EOS,)).tokenize_str(text)


def allowed(mask):
    return {8 * place + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1}


def first_masks(grammars, *grown):
    """Return of each matcher, whose output has grown by these tokens, the next one's mask, or why there is none."""
    found = grammars.masks([Growth(matcher, tokens) for matcher, tokens in grown])()
    return [masks if isinstance(masks, GrammarRefused) else masks[0] for masks in found]


def test_a_mask_allows_what_may_follow_and_at_the_end_the_end_only(grammars, tokenizer_file):
    y, e, s = tokens_of(tokenizer_file, "yes")
    matcher = grammars.matcher(YES)
    said = [first_masks(grammars, (matcher, tokens))[0] for tokens in ([], [y], [e, s])]
    assert [allowed(mask) for mask in said] == [{y}, {e}, {EOS}]
    assert matcher.num_tokens == 3
    assert repr(matcher) == "Matcher(3 tokens, Compilation(done=True))"


def test_what_can_only_follow_is_taken_with_the_token_before_it_and_so_is_the_end(grammars, tokenizer_file):
    y, e, s = tokens_of(tokenizer_file, "yes")
    all_at_once, one_more, many_ends = (
        grammars.matcher(grammar) for grammar in (YES, YES, Grammar(YES.text, (EOS, EOS + 1)))
    )
    first_masks(grammars, *((matcher, []) for matcher in (all_at_once, one_more, many_ends)))
    forced = grammars.force(
        [Said(all_at_once, [y], 9, True), Said(one_more, [y], 1, True), Said(many_ends, [y], 9, True)]
    )
    assert forced == [(e, s, EOS), (e,), (e, s)]
    assert list(map(allowed, first_masks(grammars, (one_more, []), (many_ends, [])))) == [{s}, {EOS, EOS + 1}]
    assert (all_at_once.num_tokens, one_more.num_tokens) == (4, 2)


def test_nothing_is_forced_behind_the_end_or_behind_what_does_not_follow(grammars):
    ended, wrong = grammars.matcher(A_LOT), grammars.matcher(A_LOT)
    first_masks(grammars, (ended, []), (wrong, []))
    assert grammars.force([Said(ended, [EOS], 9, True), Said(wrong, [NUL], 9, True)]) == [(), ()]
    (why,) = first_masks(grammars, (wrong, []))
    assert "doesn't satisfy the grammar" in str(why)


def test_behind_each_draft_that_follows_there_is_a_mask_and_the_matcher_has_gone_nowhere(grammars, tokenizer_file):
    y, e, s = tokens_of(tokenizer_file, "yes")
    matcher = grammars.matcher(YES)
    for drafts, found in (
        ([y, e, s], [{y}, {e}, {s}, {EOS}]),
        ([y, e, s, EOS, EOS], [{y}, {e}, {s}, {EOS}]),
        ([y, y, s], [{y}, {e}]),
        ([10**6, y], [{y}]),
        ([], [{y}]),
    ):
        (masks,) = grammars.masks([Growth(matcher, [], drafts)])()
        assert list(map(allowed, masks)) == found
    assert matcher.num_tokens == 0
    (masks,) = grammars.masks([Growth(matcher, [y, e], [s])])()
    assert list(map(allowed, masks)) == [{s}, {EOS}]
    assert grammars.force([Said(matcher, [s, EOS], 9, True)]) == [()]


def test_what_is_expected_is_told_and_not_taken(grammars, tokenizer_file):
    y, e, s = tokens_of(tokenizer_file, "yes")
    matcher, ended = grammars.matcher(YES), grammars.matcher(A_LOT)
    first_masks(grammars, (matcher, []), (ended, []))
    assert grammars.force([Said(matcher, [y], 9, False), Said(ended, [EOS], 9, False)]) == [(e, s), ()]
    assert [allowed(mask) for mask in first_masks(grammars, (matcher, []))] == [{e}]


class Costly:
    """Implements what a `Matcher` asks of llguidance: any token may follow, but behind some a mask takes too long."""

    def __init__(self, *, fails_at):
        self.seen, self._fails_at, self.is_worn = [], fails_at, False

    def deep_copy(self):
        return Costly(fails_at=self._fails_at)

    def consume_tokens(self, tokens):
        if self._fails_at == "consume" and 7 in tokens:
            self.is_worn = True
        self.seen += tokens
        return not self.is_worn

    def compute_bitmask(self):
        self.is_worn |= self._fails_at == "mask" and self.seen[-1:] == [7]
        return b"\xff"

    def rollback(self, count):
        del self.seen[-count:]
        self.is_worn |= self._fails_at == "rollback"
        return not self.is_worn

    def is_error(self):
        return self.is_worn

    def get_error(self):
        return "too much"


@pytest.mark.parametrize("fails_at", ["mask", "consume", "rollback"])
def test_a_draft_behind_which_a_mask_takes_too_long_costs_the_output_nothing(fails_at):
    compiled = Future()
    compiled.set_result(Costly(fails_at=fails_at))
    matcher = Matcher(Compilation(compiled), (EOS,))
    assert matcher.masks_along([1, 2], []) == [b"\xff"]
    assert matcher.masks_along([3], [7])[0] == b"\xff"
    assert matcher.force_after([4], 9) == (), "nothing is forced before the whole output was taken once more"
    assert matcher.num_tokens == 0
    assert matcher.masks_along([1, 2, 3, 4], []) == [b"\xff"]
    assert matcher.num_tokens == 4


def test_the_next_mask_is_made_before_somebody_asks_and_is_of_no_other_place(grammars, tokenizer_file, monkeypatch):
    y, e, s = tokens_of(tokenizer_file, "yes")
    matcher = grammars.matcher(YES)
    first_masks(grammars, (matcher, []))
    assert grammars.force([Said(matcher, [y], 1, takes_forced=True)]) == [(e,)]
    grammars._masker.submit(int).result()  # what was begun before is done
    with monkeypatch.context() as patch:
        patch.setattr(module, "mask_of", None)
        patch.setattr(module, "_make_masks", None)
        assert [allowed(first_masks(grammars, (matcher, []))[0]) for _ in range(2)] == [{s}, {s}]
    (masks,) = grammars.masks([Growth(matcher, [], [s])])()
    assert list(map(allowed, masks)) == [{s}, {EOS}], "those behind drafts are made when the drafts are known"
    assert allowed(first_masks(grammars, (matcher, [s]))[0]) == {EOS}


def test_what_is_wrong_with_a_mask_that_nobody_asked_for_is_told_to_who_asks(grammars):
    matcher = grammars.matcher(YES)
    matcher.look_ahead()
    first_masks(grammars, (matcher, []))
    assert grammars.force([Said(matcher, [NUL], 1, takes_forced=True)]) == [()]
    assert isinstance(first_masks(grammars, (matcher, []))[0], GrammarRefused)


def test_matchers_of_one_grammar_know_nothing_of_each_other(grammars, tokenizer_file):
    y, e, _ = tokens_of(tokenizer_file, "yes")
    first, second = grammars.matcher(YES), grammars.matcher(YES)
    assert list(map(allowed, first_masks(grammars, (first, [y]), (second, [])))) == [{e}, {y}]


def test_what_does_not_follow_and_what_cannot_be_compiled_are_reasons_and_others_get_their_masks(
    grammars, tokenizer_file
):
    (y,) = tokens_of(tokenizer_file, "y")
    wrong, broken = grammars.matcher(YES), grammars.matcher(Grammar("start: nothing", (EOS,)))
    why, also_why, mask = first_masks(grammars, (wrong, [NUL]), (broken, []), (grammars.matcher(YES), []))
    assert "doesn't satisfy the grammar" in str(why)
    assert 'unknown name: "nothing"' in str(also_why)
    assert allowed(mask) == {y}


def test_a_tokenizer_that_is_none_is_a_reason(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(GrammarRefused, match="tokenizer cannot be bound by grammars"):
        make_tokenizer(file, (1,))


UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["</s>", 0.0], *([c, -1.0] for c in "</s>ab")]}
BYTES = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}
WORDS = {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "</s>": 1, "a</s>b": 2}}


@pytest.mark.parametrize(("model", "ids"), [(UNIGRAM, [6, 2, 3, 4, 5, 7]), (WORDS, [2])], ids=["Unigram", "WordLevel"])
def test_characters_are_no_special_token_whatever_kind_of_tokenizer(tmp_path, model, ids):
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    names = [{"id": token_id, "content": name, **added} for token_id, name in enumerate(("<unk>", "</s>"))]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": names, "decoder": BYTES}))
    tokenizer = make_tokenizer(file, (1,))
    assert tokenizer.tokenize_str("a</s>b") == ids
    assert tokenizer.is_special_token(1)


def test_long_words_are_cut():
    class Verbose:
        def get_error(self):
            return "word " * 1000

    assert len(words_of(Verbose())) == 502


def test_a_grammar_is_compiled_once_while_it_is_used_and_the_last_ones_are_kept(grammars, monkeypatch):
    monkeypatch.setattr(module, "MAX_COMPILED", 1)
    first = grammars.prepare(YES)
    assert grammars.prepare(Grammar(YES.text, YES.end_token_ids)) is first
    other = grammars.prepare(A_LOT)
    assert grammars.prepare(YES) is first, "somebody holds it"
    assert other.is_done(timeout_s=60)
    del other
    assert repr(grammars).startswith("Grammars(1 compiled, ")


def test_closing_ends_the_threads_that_were_started(tokenizer_file):
    unused, used = Grammars(tokenizer_file), Grammars(tokenizer_file)
    used.prepare(YES)
    unused.close()
    used.close()
    with pytest.raises(RuntimeError):
        used.prepare(A_LOT)
