"""What the rows of drafts are made of: turns, ratios, and tokens that have to be the same."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.options import Options
from bench.results import RatioAtLeast
from bench.speculation import PARTS, _ask, _beside, _propose, _worsened, measure
from bench.speculation_cases import CASES, END_OF_TURN, prompt_of
from bench.speculation_picture import _apart, draw
from bench.structured_probe import Ask, Asked, Said

CONSOLE = Console(file=io.StringIO())
ASKS = [Ask([Asked([1], 4)]), Ask([Asked([2], 4)])]


class Talker:
    """A side that says what its prompt is, twice, and takes one of these times for it."""

    def __init__(self, seconds, num_passes, extra=0):
        self.seconds, self.num_passes, self.extra = list(seconds), num_passes, extra

    def ask(self, ask, kind):
        assert kind is Said
        tokens = [[*one.prompt, *one.prompt, self.extra] for one in ask.asked]
        return Said(tokens, ["stop"], 0.0, self.seconds.pop(0), self.num_passes)


def test_the_pair_with_the_middle_ratio_counts_and_not_the_first():
    drafting = Talker([9, 9, 0.5, 0.5, 1, 1, 0.25, 0.25], 2)
    plain = Talker([1] * 8, 3)
    row = _beside("copy", (drafting, plain), ASKS, RatioAtLeast(2), 3, CONSOLE)
    assert (row.ours, row.peer) == (6, 3)
    assert row.what == "copy"


def test_another_token_with_drafts_is_an_error():
    with pytest.raises(RuntimeError, match="copy: other tokens with drafts"):
        _beside("copy", (Talker([1] * 8, 1), Talker([1] * 8, 1, extra=7)), ASKS, RatioAtLeast(2), 1, CONSOLE)


def test_a_case_is_a_chat_that_ends_with_the_assistants_turn():
    (ask,) = (_ask(case, case.wishes[0], lambda text: [len(text)]) for case in CASES if case.prediction)
    (asked,) = ask.asked
    assert asked.prompt == [len(prompt_of(next(case for case in CASES if case.prediction).wishes[0]))]
    assert (asked.temperature, asked.stop_token_ids) == (0.0, (len(END_OF_TURN),))
    assert prompt_of("hi").endswith(f"hi{END_OF_TURN}\n<|im_start|>assistant\n")
    assert asked.prediction


def test_proposing_is_measured_in_a_text_in_which_runs_come_again():
    assert _propose().ours > 0


def test_an_unknown_part_is_refused_with_those_that_there_are():
    with pytest.raises(
        SystemExit, match="--parts has tusks; allowed are tasks, again, load, draft, proposing, step, grid"
    ):
        measure(Options(parts=("tusks",)), CONSOLE)
    assert all(PARTS.values())


def test_a_worsened_prediction_is_as_right_as_it_says():
    tokens = list(range(400))
    for share in (0.0, 0.5, 1.0):
        same = [guess == token for guess, token in zip(_worsened(tokens, share), tokens, strict=True)]
        assert sum(same) / len(same) == pytest.approx(share, abs=0.1)


def test_the_picture_has_a_line_for_each_batch_size():
    picture = draw({(seqs, share): 1 + share / seqs for seqs in (1, 4) for share in (0.0, 0.5, 1.0)})
    assert picture.count("<polyline") == 2
    assert picture.count("<circle") == 6
    assert ">4 sequences<" in picture
    assert ">1 sequence<" in picture


def test_words_of_lines_that_end_together_do_not_cover_each_other():
    assert _apart([50.0, 200.0, 201.0, 199.0]) == [50.0, 215.0, 231.0, 199.0]
