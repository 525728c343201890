"""Beside text that decodes, prompts with images have few rows of a pass, in turns with an encoder."""

import pytest

from dormouse_worker.engine.images.pace import FIRST_ROWS
from tests.worker.engine.images.gallery import Gallery

NUM_ROWS = 2 * FIRST_ROWS + 8  # of an image
NUM_PIECES = 3  # of the fake


def make_gallery(folder, **settings):
    """Return an engine whose passes take as long as their rows say."""
    gallery = Gallery(folder, **{"tokens": 200, "length": 256, "rows": 120, "num_blocks": 150, "seqs": 6, **settings})
    gallery.executor.encoder.most_pieces = NUM_PIECES
    return gallery


@pytest.fixture
def gallery(tmp_path):
    """Return an engine that knows the image 1, and in which a text has its first token and many to come."""
    gallery = make_gallery(tmp_path)
    gallery.add("known", [[8], (1, NUM_ROWS)], max_tokens=1)
    gallery.run()
    return with_text(gallery)


def with_text(gallery):
    gallery.add("text", [[1, 2]], max_tokens=100)
    gallery.engine.step()
    gallery.expected["text"] = gallery.expected["text"][1:]
    return gallery


def rows_by_pass(gallery, name, since=0):
    """Return how many rows of a request each pass had, of passes from some one on."""
    passes = [{each.request_id: each.num_tokens for each in batch.sequences} for batch in gallery.executor.batches]
    return [rows.get(name, 0) for rows in passes[since:]]


def test_a_prompt_has_few_rows_of_a_pass_from_its_first_image_on(gallery):
    num_passes = len(gallery.executor.batches)
    gallery.add("a", [[4] * 30, (1, NUM_ROWS), [5] * 30], max_tokens=2)
    gallery.run()
    assert rows_by_pass(gallery, "a", num_passes)[:6] == [30 + FIRST_ROWS, FIRST_ROWS, FIRST_ROWS, FIRST_ROWS, 6, 1]
    assert [batch.num_image_rows for batch in gallery.executor.batches[num_passes:]][:6] == [16, 16, 16, 16, 6, 0]
    assert rows_by_pass(gallery, "text", num_passes)[:5] == [1] * 5


def test_prompts_share_the_rows_and_texts_overtake_who_has_none(gallery):
    num_passes = len(gallery.executor.batches)
    gallery.add("a", [[4], (1, NUM_ROWS)])
    gallery.add("b", [(1, NUM_ROWS), [6]])
    gallery.add("c", [[7, 8, 9]])
    gallery.engine.step()
    assert gallery.executor.batches[-1].request_ids == ["text", "a", "c"]
    gallery.engine.step()
    gallery.engine.step()
    assert rows_by_pass(gallery, "a", num_passes) == [1 + FIRST_ROWS, FIRST_ROWS, 8]
    assert rows_by_pass(gallery, "b", num_passes) == [0, 0, FIRST_ROWS - 8]


def test_without_text_beside_a_prompt_goes_whole(gallery):
    gallery.engine.abort(["text"])
    gallery.add("a", [[4], (1, NUM_ROWS), [5]])
    gallery.engine.step()
    assert rows_by_pass(gallery, "a")[-1] == 1 + NUM_ROWS + 1
    assert gallery.executor.batches[-1].num_image_rows == 0


def test_when_the_text_ends_the_rest_of_a_prompt_goes_whole(gallery):
    gallery.add("a", [[4], (1, NUM_ROWS), [5]])
    gallery.engine.step()
    gallery.engine.abort(["text"])
    gallery.engine.step()
    assert rows_by_pass(gallery, "a")[-2:] == [1 + FIRST_ROWS, NUM_ROWS + 1 - FIRST_ROWS]


def test_an_image_that_is_computed_in_one_pass_is_not_cut(tmp_path):
    gallery = make_gallery(tmp_path, are_whole=True)
    gallery.executor.encoder.most_pieces = 1
    with_text(gallery)
    gallery.add("a", [[4], (1, NUM_ROWS), [5]])
    gallery.run()
    assert NUM_ROWS + 1 in rows_by_pass(gallery, "a")
    assert not any(batch.num_image_rows for batch in gallery.executor.batches)


def test_prompts_and_the_encoder_take_turns(gallery):
    num_passes = len(gallery.executor.batches)
    gallery.executor.encoder.most_pieces = 4
    gallery.add("a", [(1, NUM_ROWS)])
    gallery.add("b", [[6], (2, 3)])
    gallery.run()
    assert rows_by_pass(gallery, "a", num_passes)[:5] == [FIRST_ROWS, 0, FIRST_ROWS, 0, 8]
    batches = gallery.executor.batches[num_passes:]
    assert [batch.ahead.digest[0] if batch.ahead else None for batch in batches][:8] == [2] * 7 + [None]


def test_a_prompts_last_token_goes_in_the_encoders_turn_and_takes_nothing_of_others(gallery):
    """Who has no row left then stays where he is; the encoder has the next pass instead of this one."""
    num_passes = len(gallery.executor.batches)
    gallery.executor.encoder.most_pieces = 8
    gallery.add("a", [(1, NUM_ROWS), [5] * (FIRST_ROWS - 6)])
    gallery.add("b", [[6] * 3, (1, NUM_ROWS)])
    gallery.add("c", [[7], (2, 3)])
    gallery.run()
    assert rows_by_pass(gallery, "a", num_passes)[:6] == [FIRST_ROWS, 0, FIRST_ROWS, 0, FIRST_ROWS + 1, 1]
    rows = rows_by_pass(gallery, "b", num_passes)
    assert (rows[:7], rows[7] > 0) == ([3, 0, 0, 0, 0, 0, 0], True)


def test_an_image_under_way_goes_on_while_its_request_computes_the_one_before(gallery):
    gallery.add("a", [[4], (1, NUM_ROWS), (2, NUM_ROWS), [5]])
    gallery.run()
    assert gallery.scheduler.images.num_encoded == 2
    assert gallery.encoded == [1]


@pytest.mark.parametrize(("row_s", "second"), [(0.0, 17), (1.0, 14)])
def test_there_are_more_rows_where_passes_stay_short_and_fewer_where_not(gallery, row_s, second):
    gallery.engine.step()
    gallery.executor.row_s = row_s
    gallery.add("a", [(1, NUM_ROWS)])
    gallery.engine.step()
    gallery.engine.step()
    assert rows_by_pass(gallery, "a")[-2:] == [FIRST_ROWS, second]
