"""How many rows of prompts with images a pass beside text has, by what passes took."""

import pytest

from dormouse_worker.engine.batch import Batch, EncodeImage, ScheduledSequence
from dormouse_worker.engine.images.pace import FEWEST_ROWS, FIRST_ROWS, SHARE, Pace

IMAGE = EncodeImage(b"a", "a", 10, 3)
PLAIN_S = 0.1


def batch(*num_rows, image_rows=0, **fields):
    """Return a pass over sequences of so many rows each."""
    sequences = tuple(ScheduledSequence(str(place), 4, 4 + count, ([],), True) for place, count in enumerate(num_rows))
    return Batch(
        is_fresh=False,
        released=(),
        swap_out=(),
        swap_in=(),
        new=(),
        sequences=sequences,
        num_image_rows=image_rows,
        **fields,
    )


@pytest.fixture
def pace():
    """Return what has seen passes that decode."""
    pace = Pace()
    for _ in range(3):
        pace.note(batch(1, 1), PLAIN_S)
    return pace


def note_rows(pace, seconds, times=1):
    """Let passes with as many rows as they may have take so long."""
    for _ in range(times):
        pace.note(batch(1, 1, pace.most_rows, image_rows=pace.most_rows), seconds)


def test_passes_that_are_short_enough_get_more_rows(pace):
    note_rows(pace, PLAIN_S * (1 + SHARE))
    assert repr(pace) == "Pace(18 rows, 100.0 ms)"
    note_rows(pace, PLAIN_S, times=20)
    assert pace.most_rows > 5 * FIRST_ROWS


def test_passes_that_take_too_long_get_fewer_but_some(pace):
    note_rows(pace, PLAIN_S * (1.01 + SHARE))
    assert pace.most_rows == int(FIRST_ROWS / 1.1)
    note_rows(pace, 9.0, times=50)
    assert pace.most_rows == FEWEST_ROWS


def test_it_finds_the_rows_that_take_their_share(pace):
    for _ in range(100):
        note_rows(pace, PLAIN_S * (1 + 0.01 * max(0, pace.most_rows - 20)))
    assert 40 <= pace.most_rows <= 50


@pytest.mark.parametrize(
    "seen",
    [
        batch(1, FIRST_ROWS - 1, image_rows=FIRST_ROWS - 1),  # fewer: it was the end of a prompt
        batch(1, FIRST_ROWS, 9, image_rows=FIRST_ROWS),  # a prompt of text beside
        batch(1, FIRST_ROWS),
    ],
)
def test_other_passes_say_nothing_of_them(pace, seen):
    pace.note(seen, 9.0)
    assert repr(pace) == repr(Pace()).replace("0.0 ms", "100.0 ms")


def test_before_a_pass_was_seen_that_only_decodes_nothing_is_learned():
    pace = Pace()
    note_rows(pace, 9.0)
    assert pace.most_rows == FIRST_ROWS


def test_what_an_encoder_takes_between_passes_is_not_theirs(pace):
    for _ in range(30):
        pace.note(batch(1, 1, ahead=IMAGE), PLAIN_S * (1 + SHARE))
    assert repr(pace) == "Pace(16 rows, 100.0 ms)"


def test_one_odd_pass_moves_little_and_a_new_time_is_found(pace):
    pace.note(batch(1, 1), 50 * PLAIN_S)
    assert repr(pace) == "Pace(16 rows, 110.0 ms)"
    pace.note(batch(1, 1), PLAIN_S / 50)
    assert repr(pace) == "Pace(16 rows, 100.0 ms)"
    for _ in range(10):
        pace.note(batch(1, 1), PLAIN_S / 2)
    assert repr(pace) == "Pace(16 rows, 50.0 ms)"


def test_drafts_are_no_rows_of_prompts(pace):
    drafted = ScheduledSequence("a", 4, 7, ([],), samples=True, draft_token_ids=(1, 2))
    pace.note(Batch(False, (), (), (), (), (drafted,)), PLAIN_S * 1.05)
    assert repr(pace) == "Pace(16 rows, 105.0 ms)"


def test_an_image_under_way_and_prompts_take_turns(pace):
    pace.begin(5, encodes=True)
    assert pace.most_rows == 0
    pace.begin(0, encodes=True)
    assert pace.most_rows == FIRST_ROWS
    pace.begin(5, encodes=False)
    assert pace.most_rows == FIRST_ROWS
