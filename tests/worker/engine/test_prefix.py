"""Names of block contents."""

import hashlib
from array import array

from dormouse_worker.engine.prefix import hash_block, root_hash
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling


def names(tokens, salt="", num_tokens=None, **fields):
    request = Request("a", tokens, make_sampling(), arrival_s=0.0, cache_salt=salt, **fields)
    return request.block_hashes(len(tokens) if num_tokens is None else num_tokens, block_size=2)


def test_a_name_is_sha256_over_parent_and_tokens():
    parent = root_hash("salt")
    assert parent == hashlib.sha256(b"dormouse prefix\0salt").digest()
    assert hash_block(parent, [1, 2]) == hashlib.sha256(parent + array("Q", [1, 2]).tobytes()).digest()


def test_only_full_blocks_have_names():
    assert [len(names(list(range(n)))) for n in range(1, 6)] == [0, 1, 1, 2, 2]


def test_equal_beginnings_have_equal_names_and_nothing_else_has():
    first, second = names([1, 2, 3, 4, 5, 6]), names([1, 2, 3, 4, 6, 5])
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert names([3, 4])[0] not in first


def test_another_salt_is_another_name():
    assert names([1, 2], salt="x") != names([1, 2], salt="y") != names([1, 2])


def test_names_cover_the_output_and_are_computed_once():
    request = Request("a", [1], make_sampling(), arrival_s=0.0, output_token_ids=[2, 3])
    first = request.block_hashes(2, 2)[0]
    request.output_token_ids.append(4)
    assert request.block_hashes(4, 2) == names([1, 2, 3, 4])
    assert request.block_hashes(4, 2)[0] is first


def test_names_are_not_copied_whenever_there_is_one_more():
    request = Request("a", [1, 2, 3, 4], make_sampling(), arrival_s=0.0)
    assert request.block_hashes(2, 2) is request.block_hashes(4, 2)


def test_a_salt_may_be_any_text():
    assert root_hash("\ud800") != root_hash("\ud801")


def test_an_adapter_is_part_of_the_block_in_which_it_begins_and_of_all_behind_it():
    base = names([1, 2, 3, 4, 5, 6])
    first, second, third = (names([1, 2, 3, 4, 5, 6], adapter="a", lora_start=start) for start in (0, 2, 5))
    assert [each == name for each, name in zip(first, base, strict=True)] == [False] * 3
    assert [each == name for each, name in zip(second, base, strict=True)] == [True, False, False]
    assert [each == name for each, name in zip(third, base, strict=True)] == [True, True, False]
    assert not set(first) & set(second)
    assert names([1, 2], adapter="a") != names([1, 2], adapter="b")


def test_where_in_a_block_an_adapter_begins_is_part_of_its_name():
    """Whether the last token is the beginning of a later invocation is told by what comes behind the block."""
    assert names([1, 1], adapter="a", lora_start=0) != names([1, 1], adapter="a", lora_start=1)
