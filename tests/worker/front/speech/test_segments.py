"""Segments from tokens of time, and where the next window begins."""

from dataclasses import replace

import pytest

from dormouse_worker.files.speech_files import SpeechSpec
from dormouse_worker.front.speech.segments import Span, cut

BEGIN = 1000
SPEC = SpeechSpec(80, 1500, 448, 3000, 990, 900, BEGIN - 1, 980, {}, {}, (), (), None)
WINDOW = Span(500, 3000)


def at(seconds):
    return BEGIN + round(seconds / 0.02)


def told(*tokens, window=WINDOW):
    made = cut(tokens, window, SPEC)
    return [(round(one.start_s, 2), round(one.end_s, 2), one.token_ids) for one in made.segments], made.num_frames


def test_pairs_of_times_divide_segments_and_the_next_window_begins_at_the_last_one():
    first, second = [at(0), 1, at(2.1)], [at(2.1), 2, 3, at(4), at(4)]
    segments, frames = told(*first, *second, 4)
    assert segments == [(5.0, 7.1, first), (7.1, 9.0, second)]
    assert frames == 400


def test_a_single_time_at_the_end_says_that_nothing_follows():
    first, second = [at(0), 1, at(2.1)], [at(2.1), 2, at(4)]
    assert told(*first, *second) == ([(5.0, 7.1, first), (7.1, 9.0, second)], 3000)


@pytest.mark.parametrize(
    ("tokens", "end_s"), [([at(0), 1], 35.0), ([1, 2], 35.0), ([at(0), 1, at(3)], 8.0), ([at(1), 1], 6.0)]
)
def test_without_a_pair_the_whole_window_is_a_segment(tokens, end_s):
    assert told(*tokens) == ([(5.0, end_s, tokens)], 3000)


def test_no_tokens_are_no_segment():
    assert told(window=Span(0, 120)) == ([], 120)


def test_what_the_files_say_is_as_the_model_counts():
    assert (SPEC.window_frames, SPEC.timestamp_begin, SPEC.no_speech, SPEC.bytes_per_token) == (3000, 1000, 998, 2)
    assert replace(SPEC, vocab_size=51_865).bytes_per_token == 2
    assert replace(SPEC, vocab_size=256).bytes_per_token == 2  # as transformers counts: log2 is 8
