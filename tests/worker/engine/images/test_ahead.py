"""Beside sequences without images that decode, one image at a time is encoded between passes."""

import pytest

from tests.worker.engine.engine_kit import finish
from tests.worker.engine.images.gallery import Gallery, digest_of

NUM_PIECES = 3  # of the fake


@pytest.fixture
def gallery(tmp_path):
    """Return an engine in which a text has its first token, and many to come."""
    gallery = Gallery(tmp_path, tokens=64, length=64, rows=16)
    gallery.add("text", [[1, 2]], max_tokens=30)
    gallery.engine.step()
    return gallery


def ahead_by_pass(gallery):
    """Return the numbers of images that each pass but the first named as encoded between passes."""
    return [batch.ahead.digest[0] if batch.ahead else None for batch in gallery.executor.batches[1:]]


def run(gallery):
    """Step until idle; `text` has one token already."""
    gallery.expected["text"] = gallery.expected["text"][1:]
    gallery.run()


def run_rest(gallery):
    """Step until idle, whatever came so far."""
    known = {name: [] for name in gallery.expected}
    said = finish(gallery.engine, known)
    assert all(gallery.expected[name][-len(tokens) :] == tokens for name, tokens in said.items() if tokens)
    return said


def test_text_has_a_token_with_each_pass_and_none_waits_for_a_whole_image(gallery):
    for number in (1, 2):
        gallery.add(str(number), [[number], (number, 3)])
    run(gallery)
    assert ahead_by_pass(gallery)[:8] == [1, 1, 1, 2, 2, 2, 2, None]  # it rests while the first one's prompt goes on
    assert gallery.encoded == []
    assert all("text" in batch.request_ids for batch in gallery.executor.batches[:30])


def test_what_comes_before_the_image_is_computed_meanwhile(gallery):
    gallery.add("a", [[4, 5], (1, 3), [6]])
    gallery.engine.step()
    (first,) = [s for s in gallery.executor.batches[1].sequences if s.request_id == "a"]
    assert (first.start, first.end) == (0, 2)
    run_rest(gallery)


def test_later_texts_overtake_who_waits_for_an_image(gallery):
    gallery.add("a", [(1, 3), [6]])
    gallery.add("b", [(2, 3), [6]])
    gallery.engine.step()
    gallery.add("c", [[7, 8, 9]])
    gallery.engine.step()
    assert gallery.executor.batches[-1].request_ids == ["text", "c"]
    run_rest(gallery)


def test_without_text_beside_the_rest_is_encoded_at_once(gallery):
    gallery.add("a", [[3], (1, 3)])
    gallery.engine.step()
    gallery.engine.abort(["text"])
    gallery.engine.step()
    assert [image.digest for image in gallery.executor.batches[-1].encode] == [digest_of(1)]
    assert gallery.executor.batches[-1].ahead is None
    assert gallery.scheduler.images.num_encoded == 1
    assert run_rest(gallery)["a"]


def test_what_nobody_waits_for_any_more_is_dropped(gallery):
    gallery.add("a", [(1, 3)])
    gallery.add("b", [(2, 3)])
    gallery.engine.step()
    gallery.engine.abort(["a"])
    gallery.engine.step()
    assert ahead_by_pass(gallery) == [1, 2]
    assert repr(gallery.scheduler.images) == "EncoderCache(1 images, 3 of 16 rows)"
    run_rest(gallery)


def test_an_image_that_two_wait_for_goes_on_where_one_of_them_ends(gallery):
    gallery.add("a", [(1, 3)])
    gallery.add("b", [[4], (1, 3)])
    gallery.engine.step()
    gallery.engine.step()
    gallery.engine.abort(["a"])
    gallery.engine.step()
    gallery.engine.step()
    assert ahead_by_pass(gallery) == [1, 1, 1, None]
    run_rest(gallery)


def test_a_preempted_request_finds_its_image_under_way(gallery):
    gallery.add("a", [[4], (1, 3)])
    gallery.engine.step()
    assert gallery.scheduler._holdings.preempt_last().request_id == "a"
    run_rest(gallery)
    assert ahead_by_pass(gallery)[: NUM_PIECES + 1] == [1, 1, 1, None]


def test_an_image_that_cannot_be_encoded_fails_its_requests_alone(gallery):
    gallery.executor.unreadable = {digest_of(1): "an image cannot be encoded: no"}
    gallery.add("a", [(1, 3)])
    gallery.add("b", [[4], (2, 3)])
    failed = {}
    for _ in range(NUM_PIECES):
        failed |= gallery.engine.step().failed
    assert failed == {"a": "an image cannot be encoded: no"}
    assert run_rest(gallery)["b"] == gallery.expected["b"]


def test_a_failed_pass_begins_it_anew(gallery):
    gallery.add("a", [(1, 3)])
    gallery.engine.step()
    gallery.engine.step()
    gallery.executor.fail_once["execute_model"] = RuntimeError("broken")
    assert set(gallery.engine.step().failed) == {"text"}
    gallery.engine.step()
    assert [image.digest for image in gallery.executor.batches[-1].encode] == [digest_of(1)]
    assert run_rest(gallery)["a"]


def test_rows_that_come_with_numbers_that_are_none_are_not_used(gallery):
    gallery.add("a", [(1, 3)])
    for _ in range(NUM_PIECES - 1):
        gallery.engine.step()
    gallery.executor.not_finite.add("text")
    assert set(gallery.engine.step().failed) == {"text"}
    assert repr(gallery.scheduler.images) == "EncoderCache(0 images, 0 of 16 rows)"
    assert run_rest(gallery)["a"] == gallery.expected["a"]
    assert gallery.encoded == [1]


def test_a_verification_drops_it(gallery):
    gallery.add("a", [(1, 3)])
    gallery.engine.step()
    assert gallery.engine.verify(gallery.executor) == ""
    gallery.engine.step()
    assert gallery.executor.batches[-1].is_fresh
    run_rest(gallery)
    assert gallery.scheduler.images.num_encoded == 2


def test_a_reset_of_the_cache_lets_it_go_on(gallery):
    gallery.add("a", [(1, 3)])
    gallery.engine.step()
    gallery.engine.images.clear()
    run_rest(gallery)
    assert ahead_by_pass(gallery)[: NUM_PIECES + 1] == [1, 1, 1, None]


def test_it_counts_as_encoded_for_its_request_and_as_known_for_the_next(gallery):
    gallery.add("a", [(1, 3)])
    gallery.add("b", [[4], (1, 3)])
    run(gallery)
    counters = gallery.scheduler.counters
    assert (counters.image_queries, counters.image_hits) == (2, 0)
    gallery.add("c", [[5], (1, 3)])
    gallery.run()
    assert (counters.image_queries, counters.image_hits) == (3, 1)


def test_it_waits_for_room_that_another_holds(tmp_path):
    gallery = Gallery(tmp_path, tokens=3, length=64, rows=8)
    gallery.add("a", [(1, 8), [1]])
    gallery.engine.step()
    gallery.add("text", [[1]], max_tokens=30)
    gallery.add("b", [[2], (2, 8)], max_tokens=2)
    gallery.run()
    assert digest_of(2) in {batch.ahead.digest for batch in gallery.executor.batches if batch.ahead}


def test_who_needs_the_room_more_takes_it(tmp_path):
    """One waits for an image, and for blocks; another one in the middle of its prompt needs an image, too."""
    gallery = Gallery(tmp_path, tokens=64, length=64, rows=8)
    cache = gallery.scheduler.images
    gallery.add("text", [[1, 2]], max_tokens=2)
    gallery.engine.step()
    gallery.add("a", [(1, 8)])
    gallery.engine.step()
    assert cache.ahead is not None
    other = gallery.image(2, (0, 8))
    assert cache.put(other, [other.digest]).digest == other.digest
    assert cache.ahead is None
    assert cache.take_freed() == (digest_of(1),)


def test_where_those_who_decoded_beside_were_preempted_nobody_waits(tmp_path):
    gallery = Gallery(tmp_path, num_blocks=6, tokens=64, length=24, rows=16)
    gallery.add("first", [[1, 2]], max_tokens=3)
    gallery.engine.step()
    gallery.executor.encoder.most_pieces = 100
    gallery.add("a", [[3], (1, 9), [4]], max_tokens=2)
    gallery.add("text", [[5, 6]], max_tokens=12)
    gallery.expected["first"] = gallery.expected["first"][1:]
    gallery.run()
    assert gallery.scheduler.counters.preemptions
    assert gallery.encoded == [1]
