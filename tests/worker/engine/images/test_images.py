"""Requests with images, whatever happens to them; what is encoded when, and for whom it is kept."""

import msgspec
import pytest

from dormouse_worker.engine.testing import make_add
from tests.objects import num_objects
from tests.worker.engine.engine_kit import finish
from tests.worker.engine.images.gallery import Gallery


@pytest.fixture
def gallery(tmp_path):
    return Gallery(tmp_path)


PROMPTS = {
    "none": [[1, 2, 3]],
    "one": [[1], (1, 6), [2, 3]],
    "first": [(2, 5), [1]],
    "last": [[3, 4], (3, 4)],
    "three": [[5], (1, 6), [6], (2, 5), (4, 7), [7]],
    "tiles": [[8], (5, 3, 4), [1]],
    "twice": [(6, 4), [2], (6, 4), [3]],
}


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("tokens", [4, 7, 64])
@pytest.mark.parametrize(("num_blocks", "host_blocks"), [(10, 0), (10, 10), (80, 0)])
def test_a_request_says_the_same_whatever_happens_to_it(tmp_path, num_blocks, host_blocks, tokens, rows, caches):
    gallery = Gallery(
        tmp_path, num_blocks=num_blocks, host_blocks=host_blocks, tokens=tokens, rows=rows, caches=caches, length=40
    )
    for name, parts in PROMPTS.items():
        gallery.add(name, parts, max_tokens=10)
    gallery.run()
    for name, parts in PROMPTS.items():
        gallery.add(f"{name} again", parts, max_tokens=3)
    gallery.run()


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("tokens", [11, 13, 64])
@pytest.mark.parametrize(("num_blocks", "host_blocks"), [(10, 0), (10, 10), (80, 0)])
def test_an_image_that_is_whole_is_computed_in_one_pass(tmp_path, num_blocks, host_blocks, tokens, caches):
    gallery = Gallery(
        tmp_path,
        num_blocks=num_blocks,
        host_blocks=host_blocks,
        tokens=tokens,
        caches=caches,
        length=40,
        are_whole=True,
    )
    spans = {}
    for again in ("", " again"):
        for name, parts in PROMPTS.items():
            message = gallery.add(name + again, parts, max_tokens=10)
            spans[name + again] = [span for image in message.images for span in image.spans]
        gallery.run()
    for batch in gallery.executor.batches:
        for sequence in batch.sequences:
            cut = [span for span in spans[sequence.request_id] if span[0] < sequence.end < sum(span)]
            assert cut == []


def test_whole_images_tell_no_logprobs_of_prompts(tmp_path):
    gallery = Gallery(tmp_path, are_whole=True)
    message = make_add("a", [1, 2], max_tokens=1, prompt_logprobs=1)
    assert gallery.engine.add(message) is None
    message = msgspec.structs.replace(message, request_id="b", images=[gallery.image(1, (0, 1))])
    assert gallery.engine.add(message).startswith("prompt_logprobs are not told of images")


def test_preemptions_and_swaps_happened_in_the_smallest_of_these_caches(tmp_path):
    gallery = Gallery(tmp_path, num_blocks=10, host_blocks=10, length=40)
    for name, parts in PROMPTS.items():
        gallery.add(name, parts, max_tokens=10)
    gallery.run()
    assert gallery.scheduler.counters.preemptions
    assert gallery.scheduler.counters.swaps


def test_what_another_worker_began_goes_on_alike(gallery):
    whole = gallery.add("a", PROMPTS["one"])
    began = gallery.expected["a"][:2]
    gallery.run()
    gallery.add("b", PROMPTS["one"], outputs=began)
    gallery.run()
    assert whole.output_token_ids == []


def test_equal_tokens_with_different_images_share_no_block(gallery):
    gallery.add("a", [[1], (1, 6), [2, 3]])
    gallery.run()
    gallery.add("b", [[1], (2, 6), [2, 3]])
    gallery.run()
    assert gallery.scheduler.counters.prefix_hits == 0


def test_rows_at_different_places_of_equal_images_share_no_block(gallery):
    gallery.add("a", [(1, 4, 3), [2]])
    gallery.run()
    gallery.add("b", [(1, 7), [2]])
    gallery.run()
    assert gallery.scheduler.counters.prefix_hits == 4, "the block with the first four rows alone is the same"


def test_a_known_prefix_needs_no_rows(gallery):
    gallery.add("a", [[1], (1, 7), [2, 3]])
    gallery.run()
    gallery.engine._scheduler.images.clear()
    gallery.add("b", [[1], (1, 7), [2, 3, 4]])
    gallery.run()
    assert gallery.encoded == [1]
    counters = gallery.scheduler.counters
    assert (counters.image_queries, counters.image_hits) == (2, 1)


def test_rows_serve_later_requests_with_other_text(gallery):
    for name, text in (("a", [1]), ("b", [2])):
        gallery.add(name, [text, (1, 6)])
        gallery.run()
    assert gallery.encoded == [1]


def test_the_messages_count_images(gallery):
    gallery.add("a", [(1, 3), [1], (2, 3)])
    gallery.add("b", [[4], (1, 3)])
    messages = []
    while (outputs := gallery.engine.step()) is not None:
        messages.append((outputs.mm_cache_queries, outputs.mm_cache_hits))
    assert [sum(column) for column in zip(*messages, strict=True)] == [3, 1]


def test_beside_sequences_that_decode_behind_images_one_image_is_encoded_in_a_pass(tmp_path):
    gallery = Gallery(tmp_path, tokens=64)
    gallery.add("seeing", [[1], (9, 2)], max_tokens=8)
    gallery.engine.step()
    for number in (1, 2, 3):
        gallery.add(str(number), [(number, 3), [number]])
    tokens = finish(gallery.engine, {name: [] for name in gallery.expected})
    assert gallery.encoded_by_pass[1:4] == [[1], [2], [3]]
    assert {name: tokens[name] for name in "123"} == {name: gallery.expected[name] for name in "123"}


def test_without_others_as_many_rows_are_encoded_as_a_pass_has_tokens(tmp_path):
    gallery = Gallery(tmp_path, tokens=12, rows=32)
    for number in (1, 2, 3):
        gallery.add(str(number), [(number, 5)])
    gallery.run()
    assert gallery.encoded_by_pass[:2] == [[1, 2], [3]]


def test_the_longest_unused_image_makes_way(tmp_path):
    gallery = Gallery(tmp_path, rows=12, tokens=16)
    for name, number in (("a", 1), ("b", 2), ("c", 1), ("d", 3), ("e", 1), ("f", 2)):
        gallery.add(name, [[ord(name)], (number, 6)])
        gallery.run()
    assert gallery.encoded == [1, 2, 3, 2]


def test_an_image_that_finds_no_room_waits_until_others_are_computed(tmp_path):
    gallery = Gallery(tmp_path, rows=8, tokens=6)
    gallery.add("a", [(1, 8), [1]])
    gallery.add("b", [(2, 8), [2]])
    gallery.run()
    assert [batch.request_ids for batch in gallery.executor.batches[:3]] == [["a"], ["a"], ["a", "b"]]


def test_text_before_an_image_that_waits_is_computed(tmp_path):
    gallery = Gallery(tmp_path, rows=8, tokens=6)
    gallery.add("a", [(1, 8), [1]])
    gallery.engine.step()
    gallery.add("b", [[5, 6], (2, 8), [2]])
    gallery.run()
    (first,) = [s for s in gallery.executor.batches[1].sequences if s.request_id == "b"]
    assert (first.start, first.end) == (0, 2)


def test_one_that_was_swapped_out_before_its_image_waits_for_its_turn_again(tmp_path):
    gallery = Gallery(tmp_path, tokens=16, host_blocks=8)
    gallery.add("seeing", [[1], (9, 1)], max_tokens=8)
    gallery.engine.step()
    gallery.add("a", [(1, 4), [1], (3, 4), [2]])
    gallery.add("b", [[5, 6], (2, 4), [2]])
    gallery.engine.step()
    assert gallery.scheduler._holdings.preempt_last().request_id == "b"
    tokens = finish(gallery.engine, {name: [] for name in gallery.expected})
    assert gallery.scheduler.counters.swaps == 1
    assert gallery.encoded_by_pass[1:4] == [[1], [3], [2]]
    assert {name: tokens[name] for name in "ab"} == {name: gallery.expected[name] for name in "ab"}


def test_an_aborted_request_lets_its_images_go(gallery):
    gallery.add("a", [(1, 12), [1]])
    gallery.engine.step()
    gallery.engine.abort(["a"])
    gallery.expected.clear()
    gallery.engine.check_integrity()
    gallery.add("b", [(2, 14), [1]])
    gallery.run()


def test_a_failed_pass_forgets_all_rows(gallery):
    gallery.add("a", [(1, 12), [1]])
    gallery.engine.step()
    gallery.executor.fail_once["execute_model"] = RuntimeError("broken")
    assert set(gallery.engine.step().failed) == {"a"}
    gallery.expected.clear()
    gallery.add("b", [(1, 12), [2]])
    gallery.run()
    assert gallery.encoded == [1, 1]


def test_after_a_sleep_images_are_encoded_anew(gallery):
    gallery.add("a", [(1, 6), [1]])
    gallery.run()
    gallery.engine.forget_ranks()
    gallery.engine.forget_prefixes()
    gallery.add("b", [(1, 6), [1]])
    gallery.run()
    assert gallery.encoded == [1, 1]


def test_an_image_that_cannot_be_encoded_fails_its_requests_alone(tmp_path):
    gallery = Gallery(tmp_path, tokens=64)
    gallery.executor.unreadable = {bytes([1]) * 32: "an image cannot be encoded: no"}
    gallery.add("a", [[1], (1, 6), [1]])
    gallery.add("b", [[1], (2, 6), [1]])
    gallery.add("c", [[1], (1, 6), [2]])
    outputs = gallery.engine.step()
    assert outputs.failed == dict.fromkeys("ac", "an image cannot be encoded: no")
    began = gallery.expected["b"][:1]
    assert [(o.request_id, o.token_ids) for o in outputs.outputs] == [("b", began)]
    gallery.executor.unreadable.clear()
    gallery.expected = {"b": gallery.expected["b"][1:]}
    gallery.run()
    gallery.add("d", [[1], (1, 6), [2]])
    gallery.run()


def test_one_that_was_aborted_meanwhile_is_not_told_again(gallery):
    gallery.add("a", [(1, 6), [1]])
    gallery.engine.step()
    gallery.engine.abort(["a"])
    assert gallery.scheduler.with_images({bytes([1]) * 32: "no", bytes(32): "no"}) == {}


def test_rows_that_stay_for_nobody_are_found(gallery):
    gallery.add("a", [(1, 6), [1]])
    gallery.run()
    gallery.scheduler.images.hold(bytes([1]) * 32, "a")
    with pytest.raises(RuntimeError, match=r"6 of 16 rows of images are held, some for \['a'\]"):
        gallery.engine.check_integrity()


def test_a_reset_forgets_rows_that_nobody_needs(gallery):
    gallery.add("a", [(1, 6), [1]])
    gallery.run()
    gallery.add("c", [(2, 9), [1]])
    gallery.engine.step()
    gallery.engine.images.clear()
    assert repr(gallery.scheduler.images) == "EncoderCache(1 images, 9 of 16 rows)"
    gallery.run()
    gallery.engine.images.clear()
    assert repr(gallery.scheduler.images) == "EncoderCache(0 images, 0 of 16 rows)"
    gallery.add("b", [[3], (1, 6), [1]])
    gallery.run()
    assert gallery.encoded == [1, 2, 1]


def objects_behind(gallery, numbers):
    """Ask about these images one after another; return how many objects there are then."""
    for number in numbers:
        gallery.add(str(number), [[1], (number, 6), [2, 3]])
        gallery.run()
        gallery.executor.batches.clear()
        gallery.executor.calls.clear()
    return num_objects()


def test_an_image_that_is_gone_leaves_no_object_behind(tmp_path):
    """Once blocks and room for rows are full, an engine has as many objects behind each further image."""
    gallery = Gallery(tmp_path, num_blocks=10)
    _, warm, then = (objects_behind(gallery, range(start, start + 80)) for start in (1, 81, 161))
    assert then - warm < 80, "not one of each image"
